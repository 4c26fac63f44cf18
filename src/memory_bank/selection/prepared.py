"""One call or note, cut and counted once in its life: what does not depend on the session."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from memory_bank.selection.candidates import KIND, Candidate, Use, find_candidates, find_uses, words_of
from memory_bank.selection.pieces import Pieces, cut_output

_ERROR = re.compile(r"error\b|exception\b|traceback|not found|no such|failed|denied|invalid|unable to", re.I)
_FLAGGED = re.compile(r"is_?error[\\\"']*\s*[:=]\s*true", re.I)
LONGEST_ERROR = 3000
"""Characters of an output that may be nothing but the report of a failure."""
MAX_USES = 300


@dataclass(frozen=True, slots=True)
class Prepared:
    """One call or note, cut and counted: everything that does not depend on the session."""

    interaction: int
    trace_id: str
    tool: str
    arguments: str
    call_text: str
    pieces: Pieces
    candidates: tuple[tuple[Candidate, ...], ...]
    words: tuple[tuple[str, ...], ...]
    uses: tuple[Use, ...]
    tokens: tuple[int, ...]
    note: bool
    error: bool


def prepare(
    interaction: int,
    trace_id: str,
    tool: str,
    arguments: str,
    output: str,
    count: Callable[[str], int],
    call_text: str,
    note: bool = False,
) -> Prepared:
    """Cut `output`, find its candidates and count its tokens; pure apart from `count`."""
    pieces = cut_output(output)
    candidates = tuple(_find(pieces))
    words = tuple(tuple(dict.fromkeys(words_of(s.text)))[:60] for s in pieces.segments)
    tokens = tuple(count(s.text + "\n") for s in pieces.segments)
    return Prepared(
        interaction,
        trace_id,
        tool,
        arguments,
        call_text,
        pieces,
        candidates,
        words,
        tuple(find_uses(arguments)[:MAX_USES]),
        tokens,
        note,
        not note and _failed(output),
    )


def _failed(output: str) -> bool:
    """Is an output the report of a failure?"""
    if len(output) > LONGEST_ERROR:
        return False
    return _ERROR.search(output, 0, 120) is not None or _FLAGGED.search(output) is not None


def _find(pieces: Pieces) -> list[tuple[Candidate, ...]]:
    """Candidates by segment; a label counts where it stands first in its block."""
    out: list[tuple[Candidate, ...]] = []
    block = -1
    labels: set[str] = set()
    for segment in pieces.segments:
        head = ""
        if segment.block != block:
            block, labels, head = segment.block, set(), pieces.blocks[segment.block].head
        found = find_candidates(segment, head)
        kept = [c for c in found if c.kind != KIND["label"] or c.form not in labels]
        labels.update(c.form for c in kept if c.kind == KIND["label"])
        out.append(tuple(kept))
    return out
