"""The way back of ``quote_lines``."""

from memory_bank.transcript.quoting import quote_lines


def unquote_lines(text: str) -> str:
    """The text that ``quote_lines`` quoted."""
    lines = text.splitlines(keepends=True)
    return "".join(s[1:] if s.startswith("\\") and quote_lines(s[1:]) != s[1:] else s for s in lines)
