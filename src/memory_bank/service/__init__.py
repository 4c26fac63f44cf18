"""The service: an HTTP API, a proxy for OpenAI-compatible clients, an MCP server, and a web page."""
