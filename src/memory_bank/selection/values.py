"""Values: what they are in a text that a later call may need, which ones a call uses, how they are compared."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from memory_bank.selection.cutting import DRAWING, CutText, Segment, cut_text
from memory_bank.selection.effects import FileAccess, file_access, may_fetch
from memory_bank.transcript.framing import frame_of
from memory_bank.transcript.harness import refers_to_earlier
from memory_bank.transcript.jsontext import inner_json, leaves
from memory_bank.transcript.structure import unescape

LONGEST = 120  # characters of the longest value
CACHED = 1 << 15  # tokens whose kind, shape or singular is kept
LONGEST_LINE = 80  # characters of the longest line of text that is a value as a whole
LONGEST_ERROR = 3000  # characters of the longest output that may only report a failure
MAX_LEAVES, MAX_USES = 5_000, 300  # scalars in the arguments of a call that are read, values that count
MAX_WORDS = 60  # different words of a segment that are compared with the task and the latest messages
KINDS = (
    *("word", "capital", "upper", "name", "phrase", "integer", "decimal", "date", "code"),
    *("snake", "camel", "dotted", "path", "url", "email", "hex", "slug", "label"),
)
KIND = {name: number for number, name in enumerate(KINDS)}

_URL = r"(?P<url>https?://[^\s\"'<>)\]}|\\]{1,300})|"
_EMAIL = r"(?P<email>[\w.+\-]{1,64}@[\w\-]{1,64}\.[\w.\-]{1,64})|"
_DATE = (
    r"(?P<date>\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2})?)?"
    r"|\b\d{1,2}:\d{2}(?::\d{2})?(?:-\d{1,2}:\d{2})?\b)|"
)
_PATH = r"(?P<path>(?:[\w.~\-@]{0,100}/){1,40}[\w.~\-@%+]{1,100})|"
_WORD = (
    r"(?P<number>(?<![\w.])-?\d{1,60}(?:[.,]\d{1,30}){0,6}(?![\w\-]))"
    r"|(?P<word>#?\w{1,120}(?:[.\-]\w{1,120}){0,12})"
)
_TOKEN = re.compile(_URL + _EMAIL + _DATE + _PATH + _WORD)
_TOKEN_WITHOUT_AT = re.compile(_URL + _DATE + _PATH + _WORD)  # in texts without it faster, and the same
_TOKEN_WITHOUT_SLASH = re.compile(_DATE + _WORD)
_QUOTED = re.compile(
    r"\"([^\"\n]{3,100})\"|(?<!\w)'([^'\n]{3,100})'(?!\w)|`([^`\n]{3,100})`|\*\*([^*\n]{3,100})\*\*"
)
_UNION = re.compile(r"""(?:(["'])[^"'\n|]{1,60}\1 \| ){4,}(["'])[^"'\n|]{1,60}\2""")
_NAME = re.compile(r"\b[A-Z][\w'’\-]{1,30}(?: (?:of |the |and |de |& |[A-Z]\.? )?[A-Z][\w'’\-]{1,30}){1,4}")
_TAGS = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")
_LABEL_END = re.compile(r"[:=;|\n]\s|[:=]$")
_HEX = re.compile(r"(?=[0-9a-f\-]*\d)(?=[0-9a-f\-]*[a-f])[0-9a-f\-]{8,}\Z")
_PART = re.compile(r"[^\W_]{3,}")
_ASCII_PART = re.compile(r"[a-z0-9]{3,}")  # the same for folded ASCII, at half the time
_LETTERS = re.compile(r"[^\W\d_]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_ESCAPE = re.compile(r"(?<!\\)\\+([nrt\"'/])")
_ERROR = re.compile(r"error\b|exception\b|traceback|not found|no such|failed|denied|invalid|unable to", re.I)
_ERROR_FLAG = re.compile(r"is_?error[\\\"']*\s*[:=]\s*true", re.I)
TRIVIAL = frozenset(("true", "false", "none", "null", "nan", "error", "success", "utf-8"))
_TRIVIAL_DIGITS = frozenset(("", *"123456789", "15", "25"))


class Candidate(NamedTuple):
    """A value in a segment: form, kind, key, spelling; `cell`: a whole cell, JSON leaf, line or quoted string."""

    form: str
    kind: int
    key: str
    cell: bool
    text: str


class Use(NamedTuple):
    """A value in the arguments of a call. `leaf`: it is the whole value of the argument `key`."""

    form: str
    leaf: bool
    key: str


RecordKind = Literal["output", "note", "arguments"]
"""The kinds of records of the index: the output of a call, the remark with it ("note"), its long arguments."""


@dataclass(frozen=True, slots=True)
class ParsedRecord:
    """A text of a session, cut, with all that does not depend on other texts.

    Each call has a record for its output, after it one for long arguments; a remark has one before its call.
    `candidates`, `words`, `tokens` and `gaps` are by segment of `cut`; `gaps`: tokens of the gap mark before it.
    """

    interaction: int
    trace_id: str
    tool: str
    arguments: str
    cut: CutText
    candidates: tuple[tuple[Candidate, ...], ...]
    words: tuple[tuple[str, ...], ...]
    uses: tuple[Use, ...]
    tokens: tuple[int, ...]
    gaps: tuple[int, ...]
    kind: RecordKind
    error: bool
    file: FileAccess | None


def fold(text: str) -> str:
    """Return the form in which values are compared: case folded, white space collapsed."""
    return " ".join(text.split()).casefold()


def stands_in(form: str, text: str) -> bool:
    """Return whether `form` stands in `text` as whole words."""
    at = text.find(form)
    while at >= 0:
        before, after = text[max(0, at - 1) : at], text[at + len(form) : at + len(form) + 1]
        if not (before.isalnum() and form[0].isalnum()) and not (after.isalnum() and form[-1].isalnum()):
            return True
        at = text.find(form, at + 1)
    return False


# The caches below are bounded: CACHED entries of at most LONGEST characters each; longer texts are not kept.
def kind_of(text: str) -> int:
    """Return the kind of one token, a position in KINDS."""
    return _kind_of(text) if len(text) <= LONGEST else _kind_of.__wrapped__(text)


@lru_cache(maxsize=CACHED)
def _kind_of(text: str) -> int:
    if text.isdigit():
        return KIND["integer"]
    if "@" in text[1:]:
        return KIND["email"]
    if "/" in text:
        return KIND["url"] if text[:4] == "http" else KIND["path"]
    digit, alpha = any(map(str.isdigit, text)), any(map(str.isalpha, text))
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


def shape_of(text: str) -> str:
    """Return a spelling pattern: letters as a or A, digits as 9, runs of letters cut at three."""
    return _shape_of(text[:40])


@lru_cache(maxsize=CACHED)
def _shape_of(text: str) -> str:
    out: list[str] = []
    last, run = "", 0
    for char in text:
        kind = "9" if char.isdigit() else ("A" if char.isupper() else "a") if char.isalpha() else char
        run = run + 1 if kind == last else 1
        if run <= 3 or (kind == "9" and run <= 10):
            out.append(kind)
        last = kind
    return "".join(out)


def trivial(form: str) -> bool:
    """Return whether a form is too short or too common to be looked for."""
    if len(form) < 3 or form in TRIVIAL:
        return True
    if form.isdigit():
        return (len(form) == 4 and form[:2] in ("19", "20")) or form.strip("0") in _TRIVIAL_DIGITS
    return not any(map(str.isalnum, form))


def _strip(text: str) -> str:
    return text.strip().rstrip(".,;:")


def _kind_or_phrase(text: str) -> int:
    return KIND["phrase"] if " " in text else kind_of(text)


def parse_record(
    interaction: int,
    output: str,
    count_tokens: Callable[[str], int],
    trace_id: str = "",
    tool: str = "",
    arguments: str = "",
    kind: RecordKind = "output",
) -> ParsedRecord:
    """Cut a record's output (or `arguments`), find candidates in it and uses in `arguments`, count tokens."""
    own_arguments = kind == "arguments"
    pages = kind == "output" and may_fetch(tool, arguments)
    cut = cut_text(arguments, unfold=True) if own_arguments else cut_text(output, pages=pages)
    gaps = [len(cut.gap_before(n)) for n in range(len(cut.segments))]
    file = file_access(tool, arguments) if tool else None
    short = output if kind == "output" and len(output) <= LONGEST_ERROR else ""
    report = short[frame_of(short).start :]
    return ParsedRecord(
        interaction,
        trace_id,
        tool,
        arguments,
        cut,
        tuple(_by_segment(cut)),
        tuple(tuple(dict.fromkeys(words_of(s.text)))[:MAX_WORDS] for s in cut.segments),
        () if own_arguments else tuple(find_uses(arguments)[:MAX_USES]),
        tuple(count_tokens(s.text + "\n") for s in cut.segments),
        tuple(2 if chars < 2 else 3 + chars // 3 for chars in gaps),  # about; to count takes too long
        kind,
        bool(_ERROR.search(report, 0, 120) or _ERROR_FLAG.search(report)),
        None if file and file.access == "read" and refers_to_earlier(output) else file,
    )


def _by_segment(cut: CutText) -> Iterator[tuple[Candidate, ...]]:
    """Candidates of each segment; a label counts once in a block, where it stands first."""
    block = -1
    labels: set[str] = set()
    for segment in cut.segments:
        is_first = segment.block != block
        if is_first:
            block, labels = segment.block, set()
        candidates = find_candidates(segment, cut.heads[block] if is_first else "")
        yield tuple([c for c in candidates if c.kind != KIND["label"] or c.form not in labels])
        labels.update([c.form for c in candidates if c.kind == KIND["label"]])


# -- candidates of a segment --------------------------------------------------
def find_candidates(segment: Segment, head: str = "") -> list[Candidate]:
    """Return the values of a segment in reading order, each once, then those in labels and in `head`."""
    values: dict[str, Candidate] = {}
    text = segment.text
    cells = segment.cells or (("", 0, len(text)),)
    labels = dict.fromkeys([head] if head else [])
    at = 0
    for key, start, end in cells:
        value = text[start:end]
        if segment.structured and "\\" in value:
            value = unescape(value)
        _add_cell(value, key.strip().casefold(), values, bool(key) or len(cells) > 1)
        if start > at:
            labels[text[at:start]] = None
        at = end
    for label in labels:
        _add_labels(label, values)
    return list(values.values())


def _add(values: dict[str, Candidate], text: str, kind: int, key: str = "", cell: bool = False) -> None:
    form = fold(text)
    if len(form) <= LONGEST and form not in values and not trivial(form):
        values[form] = Candidate(form, kind, key, cell, text)


def _add_labels(text: str, values: dict[str, Candidate]) -> None:
    """Add the names in what stands between two cells, such as ``user.name: ``."""
    for part in _LABEL_END.split(text):
        name = part.strip(" \n\t-*#>\"'{}[](),:=")
        if not (3 <= len(name) <= 60 and name[0].isalpha()):
            continue
        _add(values, name, KIND["label"])
        if "." in name or "(" in name or (" " in name and any(c.isdigit() for c in name)):
            for match in _TOKEN.finditer(name):
                token = _strip(match.group(0)).rsplit(".", 1)[-1]
                if len(token) >= 3:
                    plain = match.lastgroup == "word" and token.islower()
                    _add(values, token, KIND["label"] if plain else kind_of(token))


def _add_cell(text: str, key: str, values: dict[str, Candidate], cell: bool) -> None:
    """Add a cell as a whole, the quoted strings and names in it, then its tokens and their parts.

    The path of a drawing has no values, nor has a long list of what a type allows, ``"a" | "b" | …``.
    """
    if key == "enum":
        return
    whole = _strip(text).strip(" *\"'`")
    if '="' in text or " | " in text:
        plain = _UNION.sub(" ", DRAWING.sub(" ", text))
        whole, text = whole if plain == text else "", plain
    if "<" in whole and len(whole) <= 3 * LONGEST:
        whole = _TAGS.sub("", whole).strip()
    if whole and len(whole) <= LONGEST and (cell or (" " in whole and len(whole) <= LONGEST_LINE)):
        _add(values, whole, _kind_or_phrase(whole), key, True)
    if " " in text:
        for match in _QUOTED.finditer(text):
            quoted = _strip(match.group(match.lastindex or 0))
            _add(values, quoted, _kind_or_phrase(quoted), key, True)
        for match in _NAME.finditer(text):
            _add(values, match.group(0), KIND["name"], key)
    pattern = _TOKEN if "@" in text else _TOKEN_WITHOUT_AT if "/" in text else _TOKEN_WITHOUT_SLASH
    for match in pattern.finditer(text):
        token, group = match.group(), match.lastgroup or ""
        token = token if group in ("word", "number") else _strip(token)  # which end with a letter or a digit
        parsed = _token(token, group) if len(token) <= LONGEST else ("", 0)
        if parsed is None:
            continue
        form, kind = parsed
        if form and form not in values:
            values[form] = Candidate(form, kind, key, False, token)
        if group in ("path", "url"):
            for short in _shortened(token):
                if short in token:  # not where parts were joined that stand apart
                    _add(values, short, kind_of(short), key)
        if group == "url" or (group in ("path", "word") and ("-" in token or "." in token)):
            for part in _PART.findall(token):
                if part != token and (part.isdigit() or not part.islower()):
                    _add(values, part, kind_of(part), key)


@lru_cache(maxsize=CACHED)
def _token(text: str, group: str) -> tuple[str, int] | None:
    """The form of a token that a group of _TOKEN matched ("": no value), and its kind; None for plain words."""
    kind = KIND.get(group, KIND["path"])
    if group == "word":
        kind = kind_of(text)
        if kind == KIND["word"]:
            if text.isascii():
                return None
            kind = KIND["name"]
    elif group == "number":
        kind = KIND["integer"] if text.lstrip("-").isdigit() else KIND["decimal"]
    form = fold(text)
    return ("" if len(form) > LONGEST or trivial(form) else form), kind


def _shortened(text: str) -> list[str]:
    """Return the parts of a path or an address that calls use: its last parts, owner, host, base address."""
    if text.startswith(("http://", "https://")):
        whole, _, query = text.partition("&")
        parts = whole.split("?")[0].split("/")[2:]
        out = [whole] if query else []
        return [*out, parts[0], *(["/".join(parts[-2:])] if len(parts) > 2 else [])]
    parts = [p for p in text.split("/") if p]
    out = parts[-1:]
    if len(parts) > 2 or (len(parts) == 2 and text[:1] in "./~"):
        out.append("/".join(parts[-2:]))
    return [*out, parts[0]] if len(parts) == 2 else out


# -- values that a call or a text names ---------------------------------------
def find_uses(arguments: str) -> list[Use]:
    """Return the values that a call's arguments name: whole leaves, and the tokens in all of them."""
    try:
        value: object = json.loads(arguments) if arguments else {}
    except (ValueError, RecursionError):
        value = arguments
    uses: dict[str, Use] = {}
    for leaf in islice(leaves(value, opened=inner_json), MAX_LEAVES):
        item, key = leaf.value, leaf.key.casefold()
        if isinstance(item, str):
            text = item[:20_000]
            form = fold(text)
            if len(form) <= LONGEST and "\n" not in text and not trivial(form):
                uses.setdefault(form, Use(form, True, key))
            for mentioned in forms_in(text):
                uses.setdefault(mentioned, Use(mentioned, False, key))
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            form = repr(item)
            if not trivial(form):
                uses.setdefault(form, Use(form, True, key))
            if form.endswith(".0"):
                uses.setdefault(form[:-2], Use(form[:-2], True, key))
    return list(uses.values())


def forms_in(text: str) -> list[str]:
    """Return the forms of the values that a free text names (a remark, a user message, code)."""
    values: dict[str, Candidate] = {}
    for line in _ESCAPE.sub(" ", text).split("\n"):
        _add_cell(line, "", values, False)
    return list(values)


# -- words --------------------------------------------------------------------
def words_of(text: str) -> list[str]:
    """Return the words of three characters or more: lower case, camel case split, singular."""
    folded = text.casefold()
    if folded != text:
        folded = _HUMP.sub(" ", text).casefold()
    words = (_ASCII_PART if folded.isascii() else _PART).findall(folded)
    if len(folded) > LONGEST and max(map(len, words), default=0) > LONGEST:
        return [_singular(w) if len(w) <= LONGEST else _singular.__wrapped__(w) for w in words]
    return [_singular(w) for w in words]


@lru_cache(maxsize=CACHED)
def key_words(key: str) -> frozenset[str]:
    """Return the words of a key or of the name of an argument: lower case, camel case split."""
    return frozenset(_LETTERS.findall(_HUMP.sub(" ", key[:LONGEST]).casefold()))


@lru_cache(maxsize=CACHED)
def _singular(word: str) -> str:
    if word[-1] != "s" or len(word) < 4 or word[-2] in "su":
        return word
    return word[:-3] + "y" if word[-3:] == "ies" and len(word) > 4 else word[:-1]
