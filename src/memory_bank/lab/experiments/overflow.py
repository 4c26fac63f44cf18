"""The dummy-overflow suite: a book whose pages are fetched one after another until the context breaks.

Page n is given only to who shows the code printed on page n - lag, so an agent whose memory loses a code
stops there; with the full history the context grows by a page a step until it is over the limit.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from memory_bank.lab.experiments.config import SuiteSettings
from memory_bank.lab.traces import Trace

TOOL = "read_page"
_WORDS = (
    "ledger",
    "harbour",
    "copper",
    "meadow",
    "signal",
    "lantern",
    "river",
    "winter",
    "orchard",
    "window",
)


def overflow_cases(settings: SuiteSettings) -> list[Trace]:
    """The cases: task and tool, no recorded turns."""
    tool = {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "One page of the book, with its code.",
            "parameters": {
                "type": "object",
                "properties": {"page": {"type": "integer"}, "code": {"type": "string"}},
                "required": ["page"],
            },
        },
    }
    task = (
        f"Read the pages 1 to {settings.pages} of book {{}} in order, one call of {TOOL} a turn. "
        f"Every page has a code. "
        f"Page n is opened with the code of page n-{settings.lag}; the first {settings.lag} need none. "
        "After the last page answer with its code."
    )
    cases = []
    for n in range(1, settings.repeats + 1):
        messages = [{"role": "user", "content": task.format(n)}]
        cases.append(Trace(f"book-{n}", messages, [tool], task.format(n)))
    return cases


def page_code(case: str, page: int) -> str:
    """The code of a page: from nothing that stands in the context."""
    return "PG-" + hashlib.sha256(f"{case}/{page}".encode()).hexdigest()[:8].upper()


class Book:
    """The tool of one case. ``reached`` is the last page opened, ``wrong`` counts refused calls."""

    def __init__(self, case: str, settings: SuiteSettings) -> None:
        self._case, self._settings = case, settings
        self.reached = 0
        self.wrong = 0

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self._settings.pages

    def call(self, name: str, arguments: Any) -> str:
        """The page as JSON, or a JSON error."""
        page = arguments.get("page") if isinstance(arguments, dict) else None
        if isinstance(page, bool):
            page = None
        needed = page - self._settings.lag if isinstance(page, int) else 0
        if name != TOOL or not isinstance(page, int) or not 1 <= page <= self.pages:
            self.wrong += 1
            return json.dumps({"error": f"there is no such page: call {TOOL} with a page of the book"})
        if needed >= 1 and arguments.get("code") != page_code(self._case, needed):
            self.wrong += 1
            return json.dumps({"error": f"page {page} is opened with the code of page {needed}"})
        self.reached = max(self.reached, page)
        words = (_WORDS[(page + i * i) % len(_WORDS)] for i in range(self._settings.page_tokens))
        return json.dumps({"page": page, "code": page_code(self._case, page), "text": " ".join(words)})

    def finished(self, answer: str) -> bool:
        """Whether all was read and the answer holds the last code."""
        return self.reached == self.pages and page_code(self._case, self.pages) in answer
