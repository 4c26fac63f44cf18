"""The newest copy of a file, in the place of an answer that only refers to a result which a fold has removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memory_bank.selection.effects import is_failure
from memory_bank.selection.files import FileCopy, Files
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.harness import refers_to_earlier
from memory_bank.transcript.messages import content_text
from memory_bank.transcript.quoting import Mark, quote_lines, sendable
from memory_bank.transcript.shortening import fit_text
from memory_bank.transcript.transcript import View
from memory_bank.transcript.turns import WHOLE, Edit

MOST_TOKENS = 10_000  # of a copy; what is longer is shortened, and says so


def restored_copies(view: View, folded: int, count: Callable[[Any], int]) -> dict[int, Edit]:
    """Edits by position of answers such as "file unchanged", whose file only the ``folded`` interactions show.

    They have the newest copy of the file after the answer's own words: what was read or written last, with later
    edits applied. A file that a later interaction shows is not shown again. A pure function of messages and fold.
    """
    if not any(
        pair.result is not None and refers_to_earlier(content_text(pair.result.content))
        for turn in view.interactions[folded:]
        for pair in turn.pairs
    ):
        return {}
    edits: dict[int, Edit] = {}
    files = Files()  # a copy has the number of the interaction that shows it
    for place, turn in enumerate(view.interactions):
        for pair in () if turn.fault else turn.pairs:
            if pair.result is None or pair.call is None:
                continue
            output, call = content_text(pair.result.content), (pair.tool_name, pair.call.text)
            files.add(place, *call, output, failed=is_failure(output, *call))
            if place < folded or pair.result_at is None or not refers_to_earlier(output):
                continue
            copies = files.meant(*call, output)
            if copies and all(copy.number < folded for copy in copies):
                copies[0].number = place
                text = f"{output}\n{_shown(copies[0], count)}"
                position = turn.start + pair.result_at
                message = edited_message(view.messages[position], {WHOLE: text})
                edits[position] = Edit({WHOLE: text}, message, count(message))
    return edits


def _shown(copy: FileCopy, count: Callable[[Any], int]) -> str:
    edits = f"; {len(copy.missing)} later edits are not in it" if copy.missing else ""
    part = f" ({copy.part})" if copy.part else ""
    head = f"{Mark.SHORTENED} that result is no longer here; its text{part}{edits}:]\n"
    return head + fit_text(
        quote_lines(sendable(copy.text)), MOST_TOKENS, lambda text: count({"content": text})
    )
