"""The HTTP API: sessions, memory, records and steps as JSON."""
