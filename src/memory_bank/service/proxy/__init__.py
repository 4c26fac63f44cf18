"""The reverse proxy for model APIs: requests go upstream with a rebuilt context."""
