"""Messages of every API as interactions, and back: parsing, pairing, tokens, JSON as tools write it."""
