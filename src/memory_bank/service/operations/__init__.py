"""Running the service: health, metrics, traces, logs, and the background Observer."""
