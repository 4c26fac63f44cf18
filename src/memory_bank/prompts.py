"""Prompts: loaded from files, filled in one pass so that values are never scanned for placeholders."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from memory_bank.errors import PromptError
from memory_bank.shipped import shipped_file

_PLACEHOLDER = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_PART = re.compile(r"^=== (system|user) ===\s*$", re.MULTILINE)


@lru_cache(maxsize=16)
def load_prompt(name: str, path: str | None = None) -> str:
    """The text of ``prompts/NAME.prompt.md``, or of another file with the same placeholders.

    A file without parts is the user part where it has a placeholder, else the system part of the shipped prompt.
    Raises PromptError.
    """
    file = Path(path) if path else shipped_file(f"prompts/{name}.prompt.md")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise PromptError(
            f"the prompt file {file} cannot be read ({type(e).__name__}): restore it or set another path."
        ) from e
    if path:
        shipped = load_prompt(name)
        if text.strip() and not _PART.search(text):
            has_values, user = _PLACEHOLDER.search(text), shipped[shipped.index("=== user ===") :]
            text = f"=== user ===\n{text}" if has_values else f"=== system ===\n{text}\n{user}"
        try:
            fill_prompt(text, dict.fromkeys(_PLACEHOLDER.findall(shipped), ""))
        except PromptError as e:
            raise PromptError(f"{path}: {e}") from None
    return text


def fill_prompt(template: str, values: dict[str, str]) -> list[dict[str, str]]:
    """Chat messages of a template whose parts begin with ``=== system ===`` and ``=== user ===``.

    ``{{ name }}`` is replaced by the value of that name; values are never scanned again. Raises PromptError
    when the template has no user part, lacks a placeholder of ``values``, or has another one.
    """
    pieces = _PART.split(template)
    parts = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    if "user" not in parts:
        raise PromptError("the prompt has no part  === user === : add one.")
    named = {name for text in parts.values() for name in _PLACEHOLDER.findall(text)}
    if missing := sorted(set(values) - named):
        raise PromptError(f"the prompt lacks the placeholder {{{{ {missing[0]} }}}}: add it.")
    if unknown := sorted(named - set(values)):
        raise PromptError(f"the prompt has the unknown placeholder {{{{ {unknown[0]} }}}}: remove it.")
    return [
        {"role": role, "content": _PLACEHOLDER.sub(lambda m: values[m.group(1)], text).strip()}
        for role, text in parts.items()
    ]
