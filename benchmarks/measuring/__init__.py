"""What benchmarks measure with: strategies, the figures of their rows, tables, plots, and processes."""
