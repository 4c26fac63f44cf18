"""The process: checks before the start, one process or several, shutdown."""
