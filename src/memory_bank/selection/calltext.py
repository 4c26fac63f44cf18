"""A tool call in a few words: the arguments that tell it from the tool's other calls, and its outcome."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from memory_bank.selection.effects import is_failure
from memory_bank.selection.values import KIND, kind_of
from memory_bank.transcript.jsontext import RAW, Leaf, inner_json, leaves, parse_arguments
from memory_bank.transcript.quoting import one_line

LEAST_CHARS = 24  # characters that are shown of every value, at least, where it has so many
ARGUMENT_CHARS = (-1, 0, 24, 40, 72)
"""Characters of arguments in ``call_line``, from its shortest form (its number only) to its longest."""
LONG_ARGUMENT = 160  # characters from which a text in the arguments of a call is shortened
ARGUMENT_START = 80  # characters that are kept of its beginning
_LEAVES = 40  # values of one call that are compared with those of other calls
_OUTCOME_LEAVES = 60  # of a JSON object, shallow ones first, that are searched for telling values
_READ_CHARS = 400  # characters of a value that are read
_SAME_CHARS = 200  # characters of two values that are compared
_AFTER = 16  # characters shown after the place where a value differs from that of the call before
_NAME_CHARS = 48  # of the last part of a path
_OUTCOME_CHARS = 48
_TELLING_CHARS = 84  # of the telling values of a JSON object
_ERROR_CHARS = 72
_LABEL = re.compile(r"\A\s*(?:<[^<>]{1,40}>\s*)?(?:error:?\s+)?", re.I)
_CONFIRMED = re.compile(
    r"(?:the )?(?:file|directory|folder|todos?|plan|notebook|cell)\b[^\n]{0,300}?\b(?:has been|have been|was|were)?"
    r"\s*(?:successfully )?(?:updated|created|modified|written|saved|edited|deleted|removed|moved)\b(?! by)",
    re.I,
)
_WORD_END = re.compile(r"[\s,;)\]}]")
_TEXT_PART = {"type", "text", "annotations", "_meta", "cache_control"}
_JSON_CHARS = 20_000
_JSON_LINE = re.compile(r"^[\[{]", re.M)
_LABELLED = re.compile(r"^[ \t]*(?:[-*] )?([A-Za-z][\w \-]{0,30}):[ \t]+(\S[^\n]{0,80})$", re.M)
_LABELLED_CHARS = 8_000  # of a text that are searched for labels
_ID_KEY = re.compile(r"(?:^|[_\W])(?:id|number|code|key|ref)$|id$", re.I)
_IDS = {KIND["code"], KIND["hex"], KIND["email"]}
_ID_CHARS = 44  # of an identifier: a UUID has 36
_LEAST_ID = 6  # characters of a value that is an identifier by its spelling
_NO_ID = re.compile(r"\s|\A\d{4}-\d\d-\d\d|\A[\d.,]+[A-Za-z]{1,3}\Z")  # several words, a time, a measure
_TELLING = re.compile(
    r"(?:^|[_\W])(?:status|state|result|message|id|url|number|path|name|count|total)$|id$", re.I
)


class Argument(NamedTuple):
    """A value in a call's arguments, on one line, with its name; ``start``: its folded beginning, to compare."""

    key: str
    text: str
    start: str


def arguments_of(arguments: str) -> tuple[Argument, ...]:
    """The values in the arguments of a call (JSON text, or any other text), in order."""
    found = []
    for value, key, _, _ in islice(leaves(parse_arguments(arguments)), _LEAVES):
        if value is None or isinstance(value, bool):
            continue
        text = str(value)[:_READ_CHARS]
        if text := one_line(text) if isinstance(value, str) else text:
            start = text[:LEAST_CHARS].strip().casefold()
            found.append(Argument("" if key == RAW else one_line(key)[:40], text, start))
    return tuple(found)


def shown_arguments(arguments: str) -> str:
    """The texts in a call's arguments that a context shows when it keeps the call, one a line."""
    if len(arguments) <= LONG_ARGUMENT:
        return arguments
    found = (str(leaf.value) for leaf in islice(leaves(parse_arguments(arguments)), _LEAVES))
    return "\n".join(text if len(text) <= LONG_ARGUMENT else text[:ARGUMENT_START] for text in found)


def distinguishing(arguments: Sequence[Argument], frequency: Sequence[int]) -> tuple[Argument, ...]:
    """The values that tell a call from its tool's others: one that only it has, else the two rarest."""
    known = {a.start: (number, at) for at, (a, number) in enumerate(zip(arguments, frequency, strict=True))}
    firsts = {a.start: a for a in reversed(arguments)}.values()
    found = [a for a in firsts if len(a.start) >= 2] or list(arguments)
    found.sort(key=lambda a: (known[a.start][0], -min(len(a.start), 12), known[a.start][1]))
    return tuple(found[: 2 if found and known[found[0].start][0] > 1 else 1])


def clip(text: str, chars: int) -> str:
    """The first ``chars`` characters of a line, cut after a word; ``…`` marks the cut."""
    if len(text) <= chars:
        return text
    cut = max((m.start() for m in _WORD_END.finditer(text, LEAST_CHARS, chars + 1)), default=0)
    return text[: cut or chars].rstrip() + "…"


def shown_value(text: str, chars: int, others: Iterable[str] = ()) -> str:
    """A value as a line shows it: longer where it differs late from ``others``; a path's start and last part."""
    name = text[text.rstrip("/").rfind("/") :] if "/" in text and " " not in text else ""
    if len(text) > chars and 1 < len(name) <= _NAME_CHARS and LEAST_CHARS + len(name) < len(text):
        return f"{text[:LEAST_CHARS]}…{name}"
    for other in others:
        most = min(len(text), len(other), _SAME_CHARS)
        same = next((i for i in range(most) if text[i] != other[i]), most)
        if same < most:
            chars = max(chars, same + _AFTER)
    return clip(text, chars)


def ending(text: str, chars: int) -> str:
    """The start of a value; of a long path its end, from a ``/`` on."""
    if len(text) <= chars or "/" not in text[-chars:] or " " in text:
        return clip(text, chars)
    return "…" + text[text.index("/", len(text) - chars) :]


def outcome(output: str, known: Collection[str] = ()) -> tuple[str, list[str]]:
    """What came back in a few words ("" for nothing, ``error: …``), and the values in it, without ``known`` ones."""
    text = output.strip()
    if is_failure(output):
        return f"error: {clip(one_line(_error_text(text)), _ERROR_CHARS)}", []
    if not text:
        return "", []
    value = _json_in(text)
    parts = value.get("content") if isinstance(value, dict) else value
    if isinstance(parts, list) and (joined := "\n".join(_texts(parts))):
        return outcome(joined, known) if joined != text else ("", [])
    if value is None:
        return _outcome_of_text(text, known)
    if isinstance(value, list):
        return f"{len(value):,} items", []
    own: list[str] = []
    pairs = []
    found = (
        leaf for leaf in islice(leaves(value, breadth_first=True), _OUTCOME_LEAVES) if leaf.value is not None
    )
    for leaf in found:
        pair = leaf.key, one_line(str(leaf.value)[:_READ_CHARS])
        if leaf.depth == 1:
            own.append(pair[1])
        # of the items of a list ids alone are shown: the count of the first one would be taken for the list's
        if is_id(*pair) or not _in_list(leaf):
            pairs.append(pair)
    shown, values = _telling(pairs, known, own)
    return shown or "ok", values


def _outcome_of_text(text: str, known: Collection[str]) -> tuple[str, list[str]]:
    line = one_line(text[:_READ_CHARS])
    if len(line) <= _OUTCOME_CHARS and len(text) <= _READ_CHARS:
        return line, []
    if _CONFIRMED.match(line):
        return "ok", []
    labelled = _LABELLED.findall(text[:_LABELLED_CHARS])
    shown, values = _telling(labelled, known, [text for _, text in labelled])
    if tells_id(shown):
        return shown, values
    lines = text.count("\n") + 1
    if lines > 1:
        return f"{lines:,} lines", []
    end = _OUTCOME_CHARS * 2 // 3
    return f"{line[: _OUTCOME_CHARS - end - 1].rstrip()}…{line[-end:].lstrip()}", []


def _in_list(leaf: Leaf) -> bool:
    trail = leaf.trail
    while trail is not None:
        trail, step = trail
        if isinstance(step, int):
            return True
    return False


def _texts(parts: Sequence[object]) -> list[str]:
    """The texts of a list that has nothing but strings of some lines, or text parts; else none."""
    texts = [p.get("text") if isinstance(p, dict) and set(p) <= _TEXT_PART else p for p in parts]
    found = [t for t in texts if isinstance(t, str)]
    lines = any("\n" in t for t in found) or any(isinstance(p, dict) for p in parts)
    return found if lines and len(found) == len(texts) else []


def _json_in(text: str) -> object:
    """The JSON value that a text is, or that follows its first lines (an exit code, a label); None without."""
    if len(text) > _JSON_CHARS:
        return None
    begin = _JSON_LINE.search(text)
    if begin is not None and begin.start():
        with suppress(ValueError, RecursionError):
            return json.JSONDecoder().raw_decode(text, begin.start())[0]
    return inner_json(text)


def _telling(
    found: Iterable[tuple[str, str]], known: Collection[str], own: Collection[str]
) -> tuple[str, list[str]]:
    """Up to three (key, value) pairs as text, ids first, and their values; those in ``own`` by spelling alone."""
    chosen = [
        (not is_id(key, text), key, text)
        for key, text in found
        if text not in known and (_TELLING.search(key) or (text in own and is_id("", text)))
    ]
    parts: dict[str, str] = {}  # by value
    room = _TELLING_CHARS
    keys: set[str] = set()
    for is_plain, key, text in sorted(chosen, key=lambda found: found[0]):
        part = f"{key}={clip(text, 32 if is_plain else _ID_CHARS)}"
        if len(part) <= room and text not in parts and not (is_plain and key in keys):
            keys.add(key)
            parts[text] = part
            room -= len(part) + 2
        if len(parts) == 3:
            break
    return ", ".join(parts.values()), list(parts)


def is_id(key: str, value: str) -> bool:
    """Whether a value is an identifier: by its key and its digits, or by its spelling."""
    if _ID_KEY.search(key):
        return any(map(str.isdigit, value))
    return len(value) >= _LEAST_ID and kind_of(value) in _IDS and not _NO_ID.search(value)


def tells_id(outcome: str) -> bool:
    """Whether an outcome contains an identifier."""
    return any(is_id(*part.split("=", 1)) for part in outcome.split(", ") if "=" in part)


def _error_text(text: str) -> str:
    value = inner_json(text) if len(text) <= _JSON_CHARS else None
    for leaf in islice(leaves(value), 40) if isinstance(value, dict) else ():
        if isinstance(leaf.value, str) and leaf.key in ("error", "message", "detail", "text", "errors"):
            return leaf.value
    if text.startswith("Traceback"):
        return text.rstrip().rsplit("\n", 1)[-1]
    return _LABEL.sub("", text[:_READ_CHARS])


def call_line(number: int, tool: str, arguments: str, chars: int = ARGUMENT_CHARS[-1]) -> str:
    """A line for a call, ``#number tool key=value, …``; with 0 `chars` number and tool's word, with -1 the number."""
    if chars < 0:
        return f"#{number}"
    name = one_line(tool)[:80]
    shown: list[str] = []
    if not chars:
        return f"#{number} {name.partition(' ')[0]}"
    for argument in arguments_of(arguments):
        part = named(argument.key, shown_value(argument.text, max(LEAST_CHARS, chars)))
        if shown and len(part) > chars:
            shown.append("…")
            break
        shown.append(part)
        chars -= len(part) + 2
    return f"#{number} {name} {', '.join(shown)}".rstrip()


def named(key: str, text: str) -> str:
    """``key=text``, or the text alone where it has no key."""
    return f"{key}={text}" if key else text
