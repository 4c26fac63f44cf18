"""Summarises one record without a model: the call, and the values of its output that identify it."""

from __future__ import annotations

import re
from itertools import islice

from memory_bank.records import InteractionRecord
from memory_bank.transcript.framing import content_of
from memory_bank.transcript.jsontext import RAW, compact, is_raw, leaves, parse_arguments
from memory_bank.transcript.messages import readable_output
from memory_bank.transcript.quoting import one_line
from memory_bank.transcript.shortening import cut_at_edge, unfold
from memory_bank.transcript.textcalls import plain_arguments

MAX_CHARS = 1_400  # about 200 words
_SCAN_CHARS = 60_000  # characters read at each end of a text
_KEY_CHARS = 200  # of a key, its end
_SCAN_LEAVES = 4_000
_ARGUMENT_CHARS = 300

_ERROR = re.compile(
    r"\b(?:\w*(?:error|exception|traceback|failed|failure|denied|not found|fatal)\w*)\b", re.I
)
# Broader than the patterns of the search and of the meter: a summary may mention what is no identifier. Each
# alternative is tried once for a run of letters, or a long one would take minutes.
_IDENTIFIER = re.compile(
    r"https?://[^\s\"'<>)\]]+"
    r"|(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"
    r"|(?<![\w.~/-])(?:[\w.~-]*/){2,}[\w.~-]+"
    r"|\b(?=[\w-]{0,120}\d)(?=[\w-]{0,120}[A-Za-z_-])[A-Za-z0-9_]+(?:-[A-Za-z0-9_]+)*\b"
    r"|\b[a-zA-Z]\w*_\w+\b"
)
_NAME_KEYS = ("name", "title", "label", "subject", "email", "city", "path", "file", "url", "status", "state")


def extract_summary(record: InteractionRecord) -> str:
    """A summary of at most 1,400 characters: the call, then errors, counts, headers, identifiers, names."""
    arguments = record.raw_input
    if is_raw(arguments):
        arguments = parse_arguments(plain_arguments(record.tool_name, str(arguments[RAW])))
    if is_raw(arguments):
        pairs = str(arguments[RAW])
    elif isinstance(arguments, dict):
        pairs = ", ".join(f"{k}={v if isinstance(v, str) else compact(v)}" for k, v in arguments.items())
    else:
        pairs = compact(arguments)
    pairs = cut_at_edge(one_line(pairs[: 2 * _ARGUMENT_CHARS]), _ARGUMENT_CHARS)
    call = f"Called {record.tool_name}({pairs})."
    value, text = readable_output(record)
    try:
        is_text = is_raw(value) and isinstance(value[RAW], str)
        content = content_of(value[RAW] if is_text else text)
        if content.value is not None:
            body = _value_summary(unfold(content.value))
        else:
            body = _text_summary(content.text) if is_text else _value_summary(unfold(value))
    except RecursionError:
        body = _text_summary(compact(value))
    return cut_at_edge(f"{call} {body}", MAX_CHARS)


def _value_summary(value: object) -> str:
    parts = [_shape(value)]
    errors: dict[str, None] = {}
    named: dict[str, None] = {}
    rest: dict[str, None] = {}
    # The shallow values first: they occur once, values of rows many times.
    filled = (leaf for leaf in leaves(value, breadth_first=True) if leaf.value not in (None, ""))
    for leaf, key, depth, _ in islice(filled, _SCAN_LEAVES):
        text = cut_at_edge(one_line(str(leaf)[:400]), 160)
        key = key[-_KEY_CHARS:]  # one long key may stand over thousands of values
        item = f"{key}: {text}" if key else text
        low = key.lower()
        if "error" in low or (isinstance(leaf, str) and len(leaf) < 2_000 and _ERROR.search(leaf)):
            errors[item] = None
        elif (depth <= 1 and len(text) <= 100) or low.endswith(
            ("id", "uuid", "key", "code", "number", "sku", *_NAME_KEYS)
        ):
            named[item] = None
        elif isinstance(leaf, str) and len(leaf) > 200:
            rest.update(dict.fromkeys(_identifiers(leaf, 12)))
        else:
            rest[item] = None
    if errors:
        parts.append("Errors: " + "; ".join(list(errors)[:4]) + ".")
    parts.append(_packed([*named, *rest], MAX_CHARS - sum(map(len, parts)) - _ARGUMENT_CHARS))
    return " ".join(p for p in parts if p)


def _shape(value: object) -> str:
    if isinstance(value, dict):
        nouns: dict[type, str] = {list: "items", dict: "fields"}
        fields = ", ".join(
            f"{k} ({len(v)} {nouns[type(v)]})" if type(v) in nouns else str(k) for k, v in value.items()
        )
        return f"Returned an object with {len(value)} fields: {cut_at_edge(fields, 300)}."
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            fields = cut_at_edge(", ".join(map(str, value[0])), 300)
            return f"Returned {len(value)} items with the fields {fields}."
        return f"Returned {len(value)} items."
    return "Returned:"


def _text_summary(text: str) -> str:
    if not text.strip():
        return "Returned nothing."
    seen = text if len(text) <= 2 * _SCAN_CHARS else f"{text[:_SCAN_CHARS]}\n{text[-_SCAN_CHARS:]}"
    lines = [line.strip() for line in seen.splitlines() if line.strip()]
    parts = [f"Returned {text.count(chr(10)) + 1:,} lines, {len(text):,} characters."]
    wrong = dict.fromkeys(cut_at_edge(line[:800], 200) for line in lines if _ERROR.search(line[:2_000]))
    errors = list(wrong)
    for title, lines_of in (
        ("Errors", errors if len(errors) <= 3 else [errors[0], *errors[-2:]]),
        ("Begins", [cut_at_edge(line[:800], 200) for line in lines[:3]]),
        ("Headings", [line for line in lines if line.startswith(("#", "==", "--")) and len(line) < 120][:8]),
        ("Ends", [cut_at_edge(line[:800], 160) for line in lines[3:][-1:]]),
    ):
        if lines_of or title == "Begins":
            parts.append(f"{title}: {' | '.join(lines_of)}.")
    names = _packed(_identifiers(seen, 400), MAX_CHARS - sum(map(len, parts)) - _ARGUMENT_CHARS)
    if names:
        parts.append("Mentions " + names)
    return " ".join(parts)


def _identifiers(text: str, most: int) -> list[str]:
    names: dict[str, None] = {}
    for m in _IDENTIFIER.finditer(text[: 2 * _SCAN_CHARS + 1]):
        value = m.group().rstrip(".,;:")
        if 3 <= len(value) <= 120:
            names[value] = None
            if len(names) >= most:
                break
    return list(names)


def _packed(items: list[str], room: int) -> str:
    packed: list[str] = []
    for item in items:
        room -= len(item) + 2
        if room < 12:
            break
        packed.append(item)
    if not packed:
        return ""
    left = len(items) - len(packed)
    return "; ".join(packed) + (f"; and {left:,} more." if left else ".")
