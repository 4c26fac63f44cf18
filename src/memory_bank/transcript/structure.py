"""The values in a text, with their positions: JSON, JSON lines, printed Python objects, cut-off and broken JSON."""

from __future__ import annotations

import re
from typing import Any

MAX_BRACKETS = 40  # brackets nested deeper than this are part of the container that holds them
LONGEST_KEY = 200  # characters that are kept of a key: many values may stand under it

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": " ", "f": " "}
_SURROGATE = re.compile("[\ud800-\udfff]")
_KEY = re.compile(r'"\s*:')
_CALL = re.compile(r"[A-Za-z_][\w.]{0,80}\(")
_JSON_START = re.compile(r"[\[{]\s*[\"\[{]")
_OPEN = re.compile(r"(?:\b[A-Za-z_][\w.]{0,80}(?=\())?[\[({]")
_TOKEN = re.compile(
    r"([\[({])|([\])}])|([,:=;])"
    r"|[bBuUrR]{0,2}(?:\"((?:[^\"\\]|\\.)*+)(\"|\\?\Z)|'((?:[^'\\]|\\.)*+)('|\\?\Z))"
    r"|([^\s\[\](){},:=;\"']+(?:'[^\s\[\](){},:=;\"']*)*)",
    re.S,
)
_PAIRS = {"]": "[", ")": "(", "}": "{"}
_OPEN_QUOTE = re.compile(r"(?:^|[=(:,\s\[{])['\"]")
_SINGLE = re.compile(r"(?:[^'\\]|\\.)*+(?=')", re.S)
_DOUBLE = re.compile(r'(?:[^"\\]|\\.)*+(?=")', re.S)
_UNFINISHED = re.compile(r'(?:[^"\\]|\\.)*+\\?\Z', re.S)
_CONSTANTS: dict[str, Any] = {
    "true": True, "True": True, "false": False, "False": False, "null": None, "None": None,
}  # fmt: skip
_NUMBER = re.compile(r"-?\d{1,60}(?:\.\d{1,60})?\Z")


class Node:
    """A value in a text: a scalar (`items` is None), or a container with the values in it.

    text[start:end] is the value with its key, text[body:stop] the value alone, a string without its quotes;
    `named`: the key, of which at most LONGEST_KEY characters are kept, stands before the value.
    """

    __slots__ = ("body", "end", "items", "key", "named", "start", "stop")

    def __init__(self, start: int, body: int, stop: int, end: int, key: str | None) -> None:
        self.start, self.body, self.stop, self.end = start, body, stop, end
        self.key, self.named = (key or "")[:LONGEST_KEY], key is not None
        self.items: list[Node] | None = None


# -- strings ------------------------------------------------------------------
def unescape(text: str) -> str:
    """Undo one level of backslash escapes; two escapes of a surrogate pair become one character."""

    def plain(match: re.Match[str]) -> str:
        code = match.group(1) or match.group(2)
        return chr(int(code, 16)) if code else _ESCAPED.get(match.group(3), match.group(3))

    out = _ESCAPE.sub(plain, text)
    if _SURROGATE.search(out):
        out = out.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return out


# -- structure ----------------------------------------------------------------
def find_structure(text: str, start: int = 0, stop: int | None = None) -> list[Node]:
    """Return the objects, arrays and printed calls that make up most of text[start:stop], in their order.

    Empty if the text is something else, such as prose or code. Brackets that the text ends within are closed
    at its end. Linear, never raises.
    """
    stop = len(text) if stop is None else stop
    head = text[start : min(stop, start + 400)].lstrip()
    if not head.startswith(("{", "[", "(")) and not _CALL.match(head):
        if not _JSON_START.search(head):
            keys = sum(1 for _ in _KEY.finditer(text, start, stop))
            if keys < 6 or keys * 220 < stop - start:
                return []
        span = escaped_span(text, start, stop)
        if span is not None and not _OPEN.search(text, start, span[0]):
            return []
    roots: list[Node] = []
    covered, at = 0, start
    while opened := _OPEN.search(text, at, stop):
        root, at = _read_root(text, opened.start(), opened.end() - 1, stop)
        if root is not None:
            roots.append(root)
            covered += root.end - root.start
    return roots if 2 * covered > stop - start else []


def _read_root(text: str, start: int, opener: int, stop: int) -> tuple[Node | None, int]:
    """Return the container that opens at `opener` (None if it holds no list of values), and its end."""
    root = Node(start, opener, stop, stop, None)
    root.items = items = []
    stack = [root]
    key: str | None = None
    begin = -1  # where the key stands
    fresh = False  # the latest value has no comma after it yet
    errors = tokens = deeper = 0
    at = opener + 1
    for match in _TOKEN.finditer(text, at, stop):
        tokens += 1
        kind, at = match.lastindex, match.end()
        if deeper:
            deeper += (kind == 1) - (kind == 2)
            continue
        if kind == 2:  # a closing bracket
            node = stack.pop()
            node.stop = node.end = at
            errors += text[node.body] != _PAIRS[match.group()]
            if not stack:
                break
            items = stack[-1].items or []
            fresh, key = True, None
            continue
        if kind == 3:  # punctuation
            sign = match.group()
            if sign == ",":
                fresh, key = False, None
            elif sign != ";" and fresh and items and items[-1].items is None:
                last = items.pop()
                key, begin = text[last.body : last.stop], last.start
                fresh = False
            else:
                errors += 1
            continue
        first = match.start()
        if kind == 1:  # an opening bracket
            if len(stack) >= MAX_BRACKETS:
                deeper = 1
                continue
            node = Node(first if key is None else begin, first, stop, stop, key)
            if fresh and items and items[-1].items is None and items[-1].end == first:
                last = items.pop()  # the name of a call
                node.start, node.key, node.named = last.start, last.key, last.named
            else:
                errors += fresh
            items.append(node)
            node.items = items = []
            stack.append(node)
            fresh, key = False, None
        elif kind == 8 and fresh and items and items[-1].items is None:  # words of one value
            items[-1].stop = items[-1].end = at
            errors += 1
        else:
            errors += fresh
            body, end = match.span(8 if kind == 8 else kind - 1 if kind else 0)
            items.append(Node(first if key is None else begin, body, end, at, key))
            fresh, key = True, None
        if errors > 8 and errors * 6 > tokens:
            return None, at
    return (root if errors * 8 <= tokens + 8 and tokens > 1 else None), at


def value_of(text: str, node: Node) -> Any:
    """The value of a node as JSON has it; bare words that are no number or constant are text."""
    if node.items is not None:
        if any(item.named for item in node.items):
            return {item.key: value_of(text, item) for item in node.items}
        return [value_of(text, item) for item in node.items]
    spelled = text[node.body : node.stop]
    if node.body and text[node.body - 1] in "\"'":
        return unescape(spelled) if "\\" in spelled else spelled
    if spelled in _CONSTANTS:
        return _CONSTANTS[spelled]
    if _NUMBER.match(spelled):
        return float(spelled) if "." in spelled else int(spelled)
    return spelled


def escaped_span(text: str, start: int, stop: int) -> tuple[int, int] | None:
    """The span of the quoted string that makes up most of text[start:stop], such as a printed object's text."""
    if text.find("\\", start, stop) < 0:
        return None
    at = start
    for _ in range(6):
        opened = _OPEN_QUOTE.search(text, at, min(stop, at + 400))
        if opened is None:
            break
        at = opened.end()
        pattern = _SINGLE if opened.group(0)[-1] == "'" else _DOUBLE
        match = pattern.match(text, at, stop)
        if match is None and opened.group(0) == ':"':
            match = _UNFINISHED.match(text, at, stop)
        if match is not None and match.end() - at >= 0.6 * (stop - start):
            return match.span()
    return None
