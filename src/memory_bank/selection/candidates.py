"""Finds the values in a segment that a later call may need, and those that a call uses."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from memory_bank.selection.pieces import Segment

LONGEST = 120
"""Longest value, in characters."""
LONGEST_LINE = 80
"""Longest line of text that is a value as a whole, in characters."""
KINDS = (
    "word",
    "capital",
    "upper",
    "name",
    "phrase",
    "integer",
    "decimal",
    "date",
    "code",
    "snake",
    "camel",
    "dotted",
    "path",
    "url",
    "email",
    "hex",
    "slug",
    "label",
)
KIND = {name: number for number, name in enumerate(KINDS)}

_TOKEN = re.compile(
    r"(?P<url>https?://[^\s\"'<>)\]}|\\]{1,300})"
    r"|(?P<email>[\w.+\-]{1,64}@[\w\-]{1,64}\.[\w.\-]{1,64})"
    r"|(?P<date>\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?(?:-\d{1,2}:\d{2})?\b)"
    r"|(?P<path>(?:[\w.~\-@]{0,100}/){1,40}[\w.~\-@%+]{1,100})"
    r"|(?P<number>(?<![\w.])-?\d{1,60}(?:[.,]\d{1,30}){0,6}(?![\w\-]))"
    r"|(?P<word>#?\w{1,120}(?:[.\-]\w{1,120}){0,12})"
)
_QUOTED = re.compile(
    r"\"([^\"\n]{3,100})\"|(?<!\w)'([^'\n]{3,100})'(?!\w)|`([^`\n]{3,100})`|\*\*([^*\n]{3,100})\*\*"
)
_NAME = re.compile(r"\b[A-Z][\w'’\-]{1,30}(?: (?:of |the |and |de |& |[A-Z]\.? )?[A-Z][\w'’\-]{1,30}){1,4}")
_TAGS = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_LABEL_END = re.compile(r"[:=;|\n]\s|[:=]$")
_SPACE = re.compile(r"\s+")
_HEX = re.compile(r"(?=[0-9a-f\-]*\d)(?=[0-9a-f\-]*[a-f])[0-9a-f\-]{8,}\Z")
_PART = re.compile(r"[^\W_]{3,}")
_ASCII_PART = re.compile(r"[a-z0-9]{3,}")  # the same for folded ASCII, at half the time
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ESCAPE = re.compile(r"\\+([nrt\"'/])")
TRIVIAL = frozenset(("true", "false", "none", "null", "nan", "error", "success", "utf-8"))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value as found in a segment: its matching form, its kind, its key, whether it fills a cell.

    `text` is how it is written.
    """

    form: str
    kind: int
    key: str
    cell: bool
    text: str


Found = dict[str, tuple[int, str, bool, str]]
"""By form: kind, key, cell and text of a candidate."""


@dataclass(frozen=True, slots=True)
class Use:
    """A value of a call's arguments; `leaf`: it is a whole argument, `key` its name."""

    form: str
    leaf: bool
    key: str


def fold(text: str) -> str:
    """The form in which values are compared: case folded, white space collapsed."""
    return _SPACE.sub(" ", text).strip().casefold()


@lru_cache(maxsize=1 << 15)
def kind_of(text: str) -> int:
    """Kind of one token by its shape."""
    if text.isdigit():
        return KIND["integer"]
    if "@" in text[1:]:
        return KIND["email"]
    if "/" in text:
        return KIND["url"] if text[:4] == "http" else KIND["path"]
    digit = any(c.isdigit() for c in text)
    alpha = any(c.isalpha() for c in text)
    if digit and not alpha:
        if len(text) >= 10 and text[4:5] == "-" and text[7:8] == "-":
            return KIND["date"]
        return KIND["decimal"] if "-" not in text[1:] else KIND["code"]
    if _HEX.match(text.casefold()):
        return KIND["hex"]
    if "_" in text.strip("_"):
        return KIND["snake"]
    if digit:
        return KIND["code"] if "." not in text else KIND["dotted"]
    if "." in text:
        return KIND["dotted"]
    if text.islower():
        return KIND["slug"] if "-" in text else KIND["word"]
    if text.isupper() and len(text) > 1:
        return KIND["upper"]
    if any(a.islower() and b.isupper() for a, b in itertools.pairwise(text)):
        return KIND["camel"]
    return KIND["capital"] if text[:1].isupper() else KIND["word"]


@lru_cache(maxsize=1 << 15)
def shape_of(text: str) -> str:
    """Coarse spelling pattern: letters to a/A, digits to 9, runs cut at four."""
    out: list[str] = []
    last, run = "", 0
    for char in text[:40]:
        mark = "9" if char.isdigit() else ("A" if char.isupper() else "a") if char.isalpha() else char
        run = run + 1 if mark == last else 1
        if run <= 3 or (mark == "9" and run <= 10):
            out.append(mark)
        last = mark
    return "".join(out)


def trivial(form: str) -> bool:
    """Too short or too common to be looked for."""
    if len(form) < 3 or form in TRIVIAL:
        return True
    if form.isdigit():
        return (len(form) == 4 and form[:2] in ("19", "20")) or form.strip("0") in (
            "",
            "1",
            "2",
            "3",
            "4",
            "5",
            "6",
            "7",
            "8",
            "9",
            "25",
            "15",
        )
    return not any(c.isalnum() for c in form)


def _strip(text: str) -> str:
    return text.strip().rstrip(".,;:")


def find_candidates(segment: Segment, head: str = "") -> list[Candidate]:
    """Values of a segment in reading order, each form once; the words of labels and of `head` after them."""
    found: Found = {}
    text = segment.text
    cells = segment.cells or (("", 0, len(text)),)
    for key, start, end in cells:
        _cell(text[start:end], key.strip().casefold(), found, bool(key) or len(cells) > 1)
    at = 0
    labels = [head] if head else []
    for _, start, end in cells:
        if start > at:
            labels.append(text[at:start])
        at = end
    for label in dict.fromkeys(labels):
        _labels(label, found)
    return [Candidate(form, *rest) for form, rest in found.items()]


def _labels(text: str, found: Found) -> None:
    for part in _LABEL_END.split(text):
        name = part.strip(" \n\t-*#>\"'")
        if 3 <= len(name) <= 60 and name[:1].isalpha():
            _put(found, name, KIND["label"], "", False)
            if "." in name or "(" in name or (" " in name and any(c.isdigit() for c in name)):
                for match in _TOKEN.finditer(name):
                    token = _strip(match.group(0)).rsplit(".", 1)[-1]
                    if len(token) >= 3:
                        _put(
                            found,
                            token,
                            KIND["label"]
                            if match.lastgroup == "word" and token.islower()
                            else kind_of(token),
                            "",
                            False,
                        )


def _put(found: Found, text: str, kind: int, key: str, cell: bool) -> None:
    form = fold(text)
    if len(form) > LONGEST or trivial(form):
        return
    if form not in found:
        found[form] = (kind, key, cell, text)


def _cell(text: str, key: str, found: Found, cell: bool) -> None:
    whole = _strip(text).strip(" *\"'`")
    if "<" in whole and len(whole) <= 3 * LONGEST:
        whole = _TAGS.sub("", whole).strip()
    if whole and (cell or (" " in whole and len(whole) <= LONGEST_LINE)) and len(whole) <= LONGEST:
        token = " " not in whole
        _put(found, whole, kind_of(whole) if token else KIND["phrase"], key, True)
    if " " in text:
        for match in _QUOTED.finditer(text):
            quoted = _strip(match.group(match.lastindex or 0))
            _put(found, quoted, KIND["phrase"] if " " in quoted else kind_of(quoted), key, True)
        for match in _NAME.finditer(text):
            _put(found, match.group(0), KIND["name"], key, False)
    for match in _TOKEN.finditer(text):
        token_text = _strip(match.group(0))
        group = match.lastgroup
        if group == "word":
            kind = kind_of(token_text)
            if kind == KIND["word"]:
                if token_text.isascii():
                    continue
                kind = KIND["name"]
        elif group == "number":
            kind = KIND["integer"] if token_text.lstrip("-").isdigit() else KIND["decimal"]
        else:
            kind = KIND[group or "path"]
        _put(found, token_text, kind, key, False)
        if group in ("path", "url"):
            for short in _shortened(token_text):
                _put(found, short, kind_of(short), key, False)
        if group in ("path", "url", "word") and ("-" in token_text or "." in token_text or group == "url"):
            for part in _PART.finditer(token_text):
                piece = part.group(0)
                if len(piece) >= 3 and piece != token_text and (piece.isdigit() or not piece.islower()):
                    _put(found, piece, kind_of(piece), key, False)


def _shortened(text: str) -> list[str]:
    """What calls take of a path or an address: its last parts, owner, host, it without options."""
    if text.startswith(("http://", "https://")):
        whole, _, more = text.partition("&")
        parts = whole.split("?")[0].split("/")[2:]
        out = [whole] if more else []
        return [*out, parts[0], *(["/".join(parts[-2:])] if len(parts) > 2 else [])]
    parts = [p for p in text.split("/") if p]
    out = parts[-1:]
    if len(parts) > 2 or (len(parts) == 2 and text[:1] in "./~"):
        out.append("/".join(parts[-2:]))
    return [*out, parts[0]] if len(parts) == 2 else out


def find_uses(arguments: str) -> list[Use]:
    """Values that a call's arguments name: whole leaves, and the tokens in all of them."""
    try:
        value: Any = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        value = arguments
    uses: dict[str, Use] = {}
    stack: list[tuple[str, Any]] = [("", value)]
    seen = 0
    while stack and seen < 5000:
        seen += 1
        key, item = stack.pop()
        if isinstance(item, dict):
            stack.extend((str(k), v) for k, v in reversed(list(item.items())))
        elif isinstance(item, list):
            stack.extend((key, v) for v in reversed(item))
        elif isinstance(item, str):
            _use_text(item[:20_000], key.casefold(), uses)
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            try:
                form = repr(item)
            except ValueError:
                continue
            if not trivial(form):
                uses.setdefault(form, Use(form, True, key.casefold()))
            if form.endswith(".0"):
                uses.setdefault(form[:-2], Use(form[:-2], True, key.casefold()))
    return list(uses.values())


def _use_text(text: str, key: str, uses: dict[str, Use]) -> None:
    if text[:1] in ("{", "[") and len(text) > 2:
        try:
            inner = json.loads(text)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, (dict, list)):
            for use in find_uses(text):
                uses.setdefault(use.form, Use(use.form, use.leaf, use.key or key))
            return
    form = fold(text)
    leaf = len(form) <= LONGEST and "\n" not in text
    if leaf and not trivial(form):
        uses.setdefault(form, Use(form, True, key))
    for candidate in find_mentions(text):
        uses.setdefault(candidate.form, Use(candidate.form, False, key))


def find_mentions(text: str) -> list[Candidate]:
    """Values named in free text (a note, a user message, code)."""
    found: Found = {}
    plain = _ESCAPE.sub(" ", text)
    for line in plain.split("\n"):
        _cell(line, "", found, False)
    return [Candidate(form, *rest) for form, rest in found.items()]


def words_of(text: str) -> list[str]:
    """Lower-case words of at least three characters, humps apart, without the s of a plural."""
    folded = _HUMP.sub(" ", text).casefold()
    return [_singular(w) for w in (_ASCII_PART if folded.isascii() else _PART).findall(folded)]


@lru_cache(maxsize=1 << 15)
def _singular(word: str) -> str:
    if word[-1] != "s" or len(word) < 4 or word[-2] in "su":
        return word
    return word[:-3] + "y" if word[-3:] == "ies" and len(word) > 4 else word[:-1]
