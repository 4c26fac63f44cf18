"""Recorded runs to the model of the evidence selection."""
