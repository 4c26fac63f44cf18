"""The web page: its files, and the recorded steps that it shows."""
