"""Training of the evidence selection's model from recorded runs."""
