"""The logs that coding agents keep of their sessions, as messages, and what their own compactions kept."""
