"""Which pieces of past outputs the next call may need: cut, scored, packed. Strings in, one text out."""
