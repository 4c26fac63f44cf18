"""What measures the library: replayed runs, the evidence meter, experiments, training."""
