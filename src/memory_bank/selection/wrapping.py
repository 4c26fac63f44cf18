"""Cuts long lines where a word ends, never inside a number, an identifier or a character."""

from __future__ import annotations

import re

from memory_bank.selection.jsonish import clean

LONGEST_WORD = 400
"""An unbroken run longer than this (base64, minified data) is named, not shown."""
_BREAK = re.compile(r"[\s,;|)\]}>]")


def wrap_line(line: str, width: int, first: int) -> list[str]:
    """Pieces of a long line, at most about `width` characters (`first` for the first), cut at word ends."""
    out, start, size, wanted = [], 0, len(line), width
    while start < size:
        width = wanted if start else first
        if size - start <= width * 5 // 4:
            out.append(line[start:])
            break
        best = 0
        for match in _BREAK.finditer(line, start + width // 2, start + width):
            best = match.end()
        if not best:
            match_or_none = _BREAK.search(line, start + width, start + LONGEST_WORD)
            best = match_or_none.end() if match_or_none else 0
        if not best:
            after = _BREAK.search(line, start + LONGEST_WORD)
            best = after.end() if after else size
            begin = line.rfind(" ", start, start + width // 2)
            if begin > start:
                out.append(line[start:begin])
                start = begin + 1
            if best - start > LONGEST_WORD:
                out.append(f"[{best - start} characters without a break]")
            else:
                out.append(line[start:best])
            start = best
            continue
        out.append(line[start:best])
        start = best
    return [p for p in (clean(p) for p in out) if p]


def whole_end(text: str) -> str:
    """Text without the word that a cut left unfinished at its end."""
    cut = max(text.rfind("\n", len(text) - 4000), text.rfind(" ", len(text) - 4000))
    return text[:cut] if cut > 0 else text


def whole_start(text: str) -> str:
    """Text without the word that a cut left unfinished at its start."""
    match = re.search(r"\s", text[:4000])
    return text[match.end() :] if match else text
