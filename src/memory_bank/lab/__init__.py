"""Measurement on recorded runs: the evidence meter, experiments, replaying and training.

The lab uses the library through its public names only, and nothing but the command line imports the lab.
"""
