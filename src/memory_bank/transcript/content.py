"""What a message's content says as text, whatever shape it arrived in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_bank.transcript.jsontext import compact, plain

_TEXT_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text"})


def read(obj: Any, key: str) -> Any:
    """A field of a dict or of an SDK object; None when it is absent."""
    if isinstance(obj, Mapping):
        return obj.get(key)
    try:
        return getattr(obj, key, None)
    except Exception:  # a property of a foreign object may raise anything
        return None


def content_text(content: Any) -> str:
    """The readable text of a content: strings as they are, text parts joined, other parts named."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, (list, tuple)):
        return "\n".join(part_text(part) for part in content)
    return compact(plain(content))


def part_text(part: Any) -> str:
    """The text of one content part; ``[image]``, ``[file report.pdf]`` and so on for what is not text."""
    if isinstance(part, str):
        return part
    text = read(part, "text")
    if text is None:
        text = read(part, "refusal")
    if isinstance(text, str):
        return text
    kind = read(part, "type")
    if not isinstance(kind, str):
        return compact(plain(part))
    name = read(part, "filename") or read(read(part, "file"), "filename")
    label = kind.removeprefix("input_").removesuffix("_url")
    return f"[{label} {name}]" if isinstance(name, str) and name else f"[{label}]"


def is_text_part(part: Any) -> bool:
    """Whether a content part carries text and nothing else."""
    if isinstance(part, str):
        return True
    kind = read(part, "type")
    return isinstance(kind, str) and kind in _TEXT_TYPES and isinstance(read(part, "text"), str)


def media_kinds(content: Any) -> list[str]:
    """The names of the parts that are not text, in order: ``["image", "file"]``."""
    if not isinstance(content, (list, tuple)):
        return []
    return [part_text(p).strip("[]") for p in content if not is_text_part(p)]


def verbatim_text(content: Any) -> str | None:
    """The text of a tool's output to the letter, where the content is text and nothing else."""
    if isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)) and len(content) == 1 and is_text_part(content[0]):
        part = content[0]
        if isinstance(part, str):
            return part
        if isinstance(part, Mapping) and set(part) <= {"type", "text"}:
            return str(part["text"])
    return None
