"""Experiments: a matrix of models, strategies, thresholds and cases, run, resumed and reported."""
