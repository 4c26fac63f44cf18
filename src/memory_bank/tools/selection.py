"""Small JSON paths over a tool's output: ``items[3].sku``, ``items[*].sku``, ``["odd key"]``, ``[2:5]``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from memory_bank.provenance.places import join_key
from memory_bank.transcript.jsontext import compact, is_deep

_STEP = re.compile(
    r"""\.?\[\s*(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*\]|"""
    r"""\.?\[\s*(?P<slice>-?\d{0,9}\s*:\s*-?\d{0,9})\s*\]|"""
    r"""\.?\[\s*(?P<index>-?\d{1,9})\s*\]|"""
    r"""\.?\[\s*(?P<all>\*)\s*\]|(?:^|\.)(?P<star>\*)(?=[.\[]|\Z)|"""
    r"""(?P<key>(?:^|\.)[^.\[\]]+)"""
)
_KEYS_TOLD = 30


class Refused(Exception):
    """A request that cannot be met; the text is the sentence that tells why."""


class Nothing(Refused):
    """There is nothing to tell, and nothing was wrong with the request."""


class ExactFloat(float):
    """A float that remembers how it was written: 19.90 stays 19.90."""

    text: str

    def __new__(cls, text: str) -> ExactFloat:
        """Make one of its JSON text."""
        new = super().__new__(cls, text)
        new.text = text
        return new


@dataclass(frozen=True, slots=True)
class Found:
    """A value at its path."""

    path: str
    value: Any


def parse_exact(text: str) -> Any:
    """The object or list that a text holds as JSON, numbers as they were written; None for all else."""
    if text[:64].lstrip("\ufeff \t\r\n")[:1] not in ("{", "["):
        return None
    try:
        value = json.loads(text, parse_float=ExactFloat)
    except (ValueError, RecursionError):
        return None
    return None if is_deep(value) else value


def parse_path(path: str) -> list[Any]:
    """The steps of a path: a text (key), an int, a slice, or ``...`` for all. Raises Refused."""
    text = path.strip()
    text = text[1:] if text[:1] == "$" and text[1:2] in ("", ".", "[") else text
    steps: list[Any] = []
    at = 0
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or match.end() == at:
            raise Refused(
                f"The path {_told(path)} is not understood from {_told(text[at:])} on: write it like "
                'items[3].sku, items[*].sku, items[2:5] or ["odd key"].'
            )
        at = match.end()
        steps.append(_step(match))
    return steps


def _step(match: re.Match[str]) -> Any:
    if (quoted := match["quoted"]) is not None:
        if quoted[0] == "'":
            return re.sub(r"\\(.)", r"\1", quoted[1:-1])
        try:
            return json.loads(quoted, strict=False)
        except ValueError:
            return quoted[1:-1]
    if match["slice"] is not None:
        start, stop = (int(p) if p.strip() else None for p in match["slice"].split(":"))
        return slice(start, stop)
    if match["index"] is not None:
        return int(match["index"])
    if match["key"] is not None:
        return match["key"].removeprefix(".").strip()
    return ...


def select(value: Any, path: str) -> list[Found]:
    """The values at a path, each with its own path; JSON that is nested as text is gone into.

    With ``[*]`` and slices what some items lack is left out. Raises Refused, with what exists there, where
    nothing is found.
    """
    found = [Found("", value)]
    many = False
    for step in parse_path(path):
        found = [Found(f.path, _opened(f.value)) for f in found]
        next_: list[Found] = []
        for f in found:
            next_ += _children(f, step)
        if not next_:
            raise Refused(_missing(path, step, found[0], len(found), many))
        many = many or isinstance(step, slice) or step is ...
        found = next_
    return found


def _opened(value: Any) -> Any:
    if isinstance(value, str) and (inner := parse_exact(value)) is not None:
        return inner
    return value


def _children(f: Found, step: Any) -> list[Found]:
    value = f.value
    if isinstance(value, dict):
        if step is ...:
            return [Found(join_key(f.path, k), v) for k, v in value.items()]
        key = str(step) if isinstance(step, int) else step
        return [Found(join_key(f.path, key), value[key])] if isinstance(key, str) and key in value else []
    if isinstance(value, list):
        if isinstance(step, str) and re.fullmatch(r"\d{1,9}", step):
            step = int(step)
        if isinstance(step, int):
            at = step if step >= 0 else len(value) + step
            return [Found(f"{f.path}[{at}]", value[at])] if 0 <= at < len(value) else []
        if step is ... or isinstance(step, slice):
            chosen = range(len(value))[step] if isinstance(step, slice) else range(len(value))
            return [Found(f"{f.path}[{i}]", value[i]) for i in chosen]
    return []


def _missing(path: str, step: Any, first: Found, places: int, many: bool) -> str:
    where = first.path or "the top"
    head = f"The path {_told(path)} finds nothing: "
    value = first.value
    if isinstance(value, dict):
        keys = ", ".join(_told(k) for k in list(value)[:_KEYS_TOLD])
        more = f" and {len(value) - _KEYS_TOLD:,} more" if len(value) > _KEYS_TOLD else ""
        others = f" (and in {places - 1:,} others)" if many and places > 1 else ""
        return f"{head}at {where}{others} there is an object with " + (
            f"the keys {keys}{more}." if keys else "no keys."
        )
    if isinstance(value, list):
        hint = (
            f"; name an item, {where if first.path else ''}[0] or [*]"
            if isinstance(step, str) and value
            else ""
        )
        span = f"a list of {len(value):,} items, [0] to [{len(value) - 1}]" if value else "an empty list"
        return f"{head}at {where} there is {span}{hint}."
    what = "a text that is not JSON" if isinstance(value, str) else "a single value"
    return f"{head}at {where} there is {what}."


def _told(text: str) -> str:
    return compact(text if len(text) <= 80 else f"{text[:79]}…")


def written(value: Any) -> str:
    """A value as text: texts as they are, all else as JSON with numbers as they came."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: Any, indent: str = "") -> str:
    """JSON text; what fits into 100 characters stands on one line."""
    if isinstance(value, ExactFloat):
        return value.text
    if not isinstance(value, (dict, list)) or not value:
        return compact(value)
    inner = indent + "  "
    if isinstance(value, dict):
        parts = [f"{compact(k)}: {as_json(v, inner)}" for k, v in value.items()]
        left, right = "{}"
    else:
        parts = [as_json(v, inner) for v in value]
        left, right = "[]"
    flat = f"{left}{', '.join(parts)}{right}"
    if len(flat) <= 100 and "\n" not in flat:
        return flat
    return f"{left}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{right}"
