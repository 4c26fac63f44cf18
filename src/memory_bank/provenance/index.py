"""The identifiers in texts, and an index of all that a session has shown the agent: sources, the nearest value."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from operator import is_
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from memory_bank.provenance.report import Place
from memory_bank.records import InteractionRecord
from memory_bank.transcript.jsontext import compact, inner_json, leaves, plain
from memory_bank.transcript.messages import Interaction, MessageKind, content_text, kind_of, read
from memory_bank.transcript.quoting import Mark
from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript, View


class ValueKind(StrEnum):
    """The kinds of values in arguments and outputs."""

    TRIVIAL = "trivial"  # booleans, small numbers, common words, empty values
    NUMBER = "number"  # may be computed
    LONG_NUMBER = "long number"
    DATE = "date"
    EMAIL = "e-mail"
    URL = "url"
    PATH = "path"
    CODE = "code"  # one token with a part that cannot be guessed: A-1042, credit_card_9513926
    NAME = "name"  # one token with inner structure but no such part: order_items, report.pdf
    WORD = "word"
    TEXT = "text"  # prose, code, queries: checked token by token


_WRITTEN = {ValueKind.TRIVIAL, ValueKind.NUMBER, ValueKind.DATE, ValueKind.WORD, ValueKind.TEXT}
IDENTIFIERS = frozenset(ValueKind) - _WRITTEN
"""The kinds that must come from somewhere; an agent may write the others itself."""

_EMAIL = re.compile(r"[\w.+%-]+@[\w-]+(?:\.[\w-]+)+\Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://\S+\Z")
_PATH = re.compile(r"(?:~|\.{1,2}|[A-Za-z]:)?[/\\][^\s]|[\w.@~-]+/[\w.@~*-]")
_DAY = r"(?:19|20)\d\d[-_/.]?(?:0[1-9]|1[0-2])[-_/.]?(?:0[1-9]|[12]\d|3[01])"
_CLOCK = r"(?:[01]?\d|2[0-3])[:h]?[0-5]\d(?:[:.]?[0-5]\d(?:[.,]\d{1,9})?)?\s*(?:[ap]m)?"
_ZONE = r"(?:z|utc|[+-]\d\d:?\d\d)?"
_DATE = re.compile(
    rf"(?:{_DAY}(?:(?:t|[ _-]){_CLOCK}\s*{_ZONE})?|(?:19|20)\d\d-(?:0[1-9]|1[0-2])"
    rf"|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{2,4}}|\d{{1,2}}[:]\d\d(?::\d\d)?\s*(?:[ap]m)?|p(?=t?\d)(?:\d+[ymwd])*(?:t(?:\d+[hms])+)?)\Z",
    re.I,
)
_DAY_INSIDE = re.compile(
    rf"(?<!\d){_DAY}(?:[t_-]?(?:[01]\d|2[0-3])[:_-]?[0-5]\d(?:[:_-]?[0-5]\d)?z?)?(?!\d)", re.I
)
_INTEGER = re.compile(r"[-+]?\d+\Z")
_DECIMAL = re.compile(r"[-+]?(?:\d[\d,]*)?\.?\d+(?:e[-+]?\d+)?%?\Z", re.I)
_RUN = re.compile(r"[^\W_]+")
_UNIT = re.compile(
    r"\d{1,4}[kpsmhdxg]\Z|\d+(?:px|pt|em|rem|kb|mb|gb|tb|ms|min|hz|khz|mhz|ghz|bit|bits|fps|dpi|usd|eur|kg|km|cm|mm|th|st|nd|rd|am|pm|"
    r"days?|hours?|years?|weeks?|months?)\Z|\d+x\d+\Z|(?:19|20)\d\d(?:s|q[1-4]|h[12]|[a-z]{3,9})\Z|"
    r"(?:q[1-4]|h[12]|fy|[a-z]{3,9})(?:19|20)\d\d\Z|\d{1,2}[a-z]{3,9}(?:19|20)?\d\d\Z|(?:utf|sha|md|iso|rfc|base|latin|cp|"
    r"gb|ascii|float|int|uint|v|p|ipv|es|python|py|col|column|row|sheet|h|gpt)\d{1,5}\Z"
)
_ID_KEY = re.compile(
    r"(?:^|[_\W])(?:ids?|uuid|guid|no|number|num|code|ref|reference|account|acct|iban|phone|mobile|zip|postcode|sku|"
    r"isbn|key|token|hash|sha|commit|ticket|invoice|tracking|serial)\Z|[a-z](?:Id|ID|Ids|IDs|Uuid|Code|Number)\Z"
)
_TIME_KEY = re.compile(r"time|date|since|until|before|after|start|end|expire|epoch|^ts$|_ts$|_at$", re.I)
_STRUCTURE = re.compile(r"[\d_@/\\#]|[a-z][A-Z]|\w[-.:]\w")
_CHUNK = re.compile(r"[^\s\"'`<>()\[\]{},;|=*]+")
_ESCAPED = re.compile(r"\\+[nrtbf\"'/]")
_COLOUR = re.compile(r"#?(?:[0-9a-f]{3}|(?=\d*[a-f]+\d*[a-f])[0-9a-f]{6})\Z", re.I)
_CELLS = re.compile(r"(?:[^\s!]{1,40}!)?\$?[A-Z]{1,2}\$?\d{0,5}:\$?[A-Z]{1,2}\$?\d{0,5}\Z|[A-Z]\d{1,3}\Z")
_CASE_MIX = re.compile(r"(?:[a-z\d]+[A-Z]+){3}|(?:[A-Z\d]+[a-z]+){3}")
_EDGES = ".,:;!?&-+$%\\"
_BLANK = re.compile(r"\s")
_LETTER = re.compile(r"[^\W\d_]")
_DIGIT = re.compile(r"\d")
_LONGEST = 300  # characters of an identifier; longer tokens are data, such as base64


def hard_runs(value: str) -> list[str]:
    """The case-folded parts of a token that cannot be guessed: 4 digits or more, letters mixed with digits."""
    if not _DIGIT.search(value):
        return []
    return [
        run.casefold()
        for run in _RUN.findall(_DAY_INSIDE.sub(" ", value))
        if _is_hard(run.casefold())
        or (len(run) >= 8 and _DIGIT.search(run) and _CASE_MIX.search(run))  # in a random mix of case
    ]


def _is_hard(run: str) -> bool:
    digits = sum(c.isdigit() for c in run)
    if digits == len(run):
        if digits < 4 or len(set(run[1:])) == 1 == len(set(run[1:] + "0")):
            return False
        return digits > 4 or run[:2] not in ("19", "20")
    return digits >= 2 and len(run) >= 5 and run.isascii() and not _UNIT.match(run)


def kind_of_text(value: str, key: str = "") -> ValueKind:
    """The kind of a text; ``key`` is the name of the argument or member that holds it."""
    text = value.strip()
    if len(text) < 2:
        return ValueKind.TRIVIAL
    if (figure := _kind_of_figure(text, key)) is not None:
        return figure
    if len(text) > _LONGEST or _BLANK.search(text):
        is_path = text[0] in "/~" and "\n" not in text and len(text) <= _LONGEST and text.count("/") > 1
        return ValueKind.PATH if is_path else ValueKind.TEXT
    return kind_of_token(text)


def kind_of_number(value: float, key: str = "") -> ValueKind:
    """The kind of a number; ``key`` is the name of the argument or member that holds it."""
    if isinstance(value, int):
        return _kind_of_integer(str(abs(value)), key, 9)
    return ValueKind.TRIVIAL if value.is_integer() and abs(value) < 1000 else ValueKind.NUMBER


def _kind_of_figure(text: str, key: str = "") -> ValueKind | None:
    """The kind of a text that is a date or a number; None for others."""
    if _DATE.match(text):
        return ValueKind.DATE
    if _INTEGER.match(text):
        return _kind_of_integer(text.lstrip("+-"), key, 5)
    return ValueKind.NUMBER if _DECIMAL.match(text) else None


def _kind_of_integer(digits: str, key: str, long: int) -> ValueKind:
    if len(digits) < 4 or not digits.strip("0"):
        return ValueKind.TRIVIAL
    if _TIME_KEY.search(key) and len(digits) in (8, 10, 13) and digits[0] in "12":
        return ValueKind.DATE
    is_long = _is_hard(digits) and (len(digits) >= long or _ID_KEY.search(key))
    return ValueKind.LONG_NUMBER if is_long else ValueKind.NUMBER


def kind_of_token(token: str) -> ValueKind:
    """The kind of a text without blanks."""
    if not _STRUCTURE.search(token):
        is_common = token.isalpha() and token.islower() and token.isascii()
        return ValueKind.TRIVIAL if is_common else ValueKind.WORD
    if "://" in token and _URL.match(token):
        return ValueKind.URL
    if "@" in token and _EMAIL.match(token):
        return ValueKind.EMAIL
    if (figure := _kind_of_figure(token)) is not None:
        return figure
    if ("/" in token or "\\" in token) and _PATH.match(token):
        return ValueKind.PATH
    if _CELLS.match(token) or (token[0] == "#" and _COLOUR.match(token)):
        return ValueKind.TRIVIAL
    if hard_runs(token):
        return ValueKind.CODE
    return ValueKind.NAME if _LETTER.search(token) else ValueKind.TRIVIAL


def identifiers_in(text: str) -> Iterator[tuple[str, ValueKind, int]]:
    """``(token, kind, position)`` of the identifiers in a text."""
    if "\\" in text:
        text = _ESCAPED.sub(lambda m: " " * len(m[0]), text)
    for match in _CHUNK.finditer(text):
        chunk = match.group()
        if len(chunk) < 3 or len(chunk) > _LONGEST or not _STRUCTURE.search(chunk):
            continue
        token = chunk.strip(_EDGES)
        if len(token) < 3:
            continue
        kind = kind_of_token(token)
        if kind in IDENTIFIERS:
            yield token, kind, match.start()
        has_parts = kind in (ValueKind.CODE, ValueKind.NAME) and (":" in token or "&" in token)
        if has_parts or (kind is ValueKind.TRIVIAL and ":" in token):
            for part in re.split(r"[:&]+", token):
                if len(part) >= 3 and part != token and (inner := kind_of_token(part)) in IDENTIFIERS:
                    yield part, inner, match.start()


# comparing texts

_ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|([nrtbf])|([\"'/]))")
_BACKSLASHES = re.compile(r"\\{2,}")
_BLANKS = re.compile(r"\s+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# ASCII letters and digits apart from all others: CJK text has no blank between an order number and its words.
_NORMAL_RUN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]+")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?\Z")
_NO_WORD_GAPS = "\u2e80"  # from here on scripts write without blanks


def normal(text: str) -> str:
    """The normal form for comparisons: without JSON escapes, however nested; case and blanks folded."""
    if "\\" in text:
        text = _BACKSLASHES.sub(
            r"\\", _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else " " if m[2] else m[3], text)
        )
        if _SURROGATE.search(text):
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _BLANKS.sub(" ", text).strip().casefold()


def runs(text: str) -> list[str]:
    """The runs of letters and digits in a normal text, in order."""
    return _NORMAL_RUN.findall(text)


def number_forms(text: str) -> Iterator[str]:
    """The forms in which a number may be written: with and without separators and zeros at the end."""
    bare = text.replace(",", "").removeprefix("+")
    if bare.lstrip("-")[:1] == "0" and "." not in bare:
        return iter((text,))  # an identifier, in which zeros count
    forms = [text, bare]
    whole, dot, rest = bare.partition(".")
    short = rest.rstrip("0")
    forms.append(f"{whole}.{short}" if short else whole)
    forms += [f"{whole}.{short.ljust(n, '0')}" for n in (1, 2) if len(short) <= n]
    sign, digits = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    if digits.isdigit() and 3 < len(digits) < 40:
        forms.append(f"{sign}{int(digits):,}{dot}{rest}")
    return iter(dict.fromkeys(forms))


def find(text: str, value: str) -> int:
    """The first position of a value in a text at token boundaries, both in normal form; -1 without one."""
    if not value:
        return -1
    is_number = bool(_NUMBER.match(value))
    end = len(value)
    at = text.find(value)
    while at >= 0:
        if not _continues(text, at - 1, value[0]) and not _continues(text, at + end, value[-1]):
            joints = text[max(0, at - 2) : at][::-1], text[at + end : at + end + 2]
            if not is_number or not any(len(j) == 2 and j[0] in ".," and j[1].isdigit() for j in joints):
                return at
        at = text.find(value, at + 1)
    return -1


def _continues(text: str, at: int, edge: str) -> bool:
    """Whether the character at a position continues the token that ends with ``edge``."""
    if not 0 <= at < len(text) or not edge.isalnum() or edge >= _NO_WORD_GAPS:
        return False
    other = text[at]
    return other == "_" or (other.isalnum() and other < _NO_WORD_GAPS)


Role = Literal["record", "user", "system", "schema", "agent"]
_ROLES: dict[MessageKind, Role] = {MessageKind.SYSTEM: "system", MessageKind.USER: "user"}
_ROLES |= {MessageKind.SAY: "agent", MessageKind.CALL: "agent"}

_SCANNED_CHARS = 1_000_000  # of one text, for identifiers to propose; every value is found anywhere
_PROPOSED = 5_000  # identifiers of one text that are proposed
_PLACED_CHARS = 300_000  # of a JSON output in which the path of a value is searched
PATH_JOINTS = re.compile(r"[/\\?&=]+")

# the nearest identifier

_DIMENSIONS = 40  # a-z, 0-9, and four for all other characters
_COMPARED = 24  # identifiers whose distance is computed exactly
_DIMENSION_OF = bytes(
    o - 97 if 97 <= o <= 122 else 26 + o - 48 if 48 <= o <= 57 else 36 + o % 4 for o in range(256)
)


@dataclass(frozen=True, slots=True)
class KnownIdentifier:
    """An identifier in a source: as written, in normal form, its kind, its key and its place."""

    value: str
    normal: str
    kind: ValueKind
    key: str
    source: int
    place: str


Near = tuple[KnownIdentifier, int]  # a known identifier and its distance in edits from another one


def distance(a: str, b: str, limit: int) -> int:
    """The edits (optimal string alignment) from ``a`` to ``b``, in a band; ``limit + 1`` for more."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    start = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    if not a or not b:
        return min(len(a) + len(b), limit + 1)
    far = limit + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        new = [i] + [far] * len(b)
        for j in range(max(1, i - limit), min(len(b), i + limit) + 1):
            cb = b[j - 1]
            cost = min(new[j - 1] + 1, row[j] + 1, row[j - 1] + (ca != cb))
            if i > 1 and j > 1 and ca == b[j - 2] and cb == a[i - 2]:
                cost = min(cost, before[j - 2] + 1)
            new[j] = cost
        if min(new) > limit:
            return far
        before, row = row, new
    return min(row[-1], far)


def _shape(normal: str) -> str:
    return "".join("9" if c.isdigit() else "a" if c.isalpha() else c for c in normal)


def _is_same_key(a: str, b: str) -> bool:
    """Whether two keys name the same thing, such as ``orderId``, ``order_ids`` and ``id``."""
    a, b = (k.casefold().replace("_", "").replace("-", "").removesuffix("s") for k in (a, b))
    return bool(a and b) and (a.endswith(b) or b.endswith(a))


class Neighbourhood:
    """Identifiers as columns of character counts, so that the nearest of many thousands are found at once."""

    def __init__(self) -> None:
        self._by_normal: dict[str, KnownIdentifier] = {}
        self._identifiers: list[KnownIdentifier] = []
        self._by_shape: dict[str, list[KnownIdentifier]] = {}
        self._counts: npt.NDArray[np.int8] = np.zeros((_DIMENSIONS, 1024), np.int8)

    def add(self, identifier: KnownIdentifier) -> bool:
        """Add an identifier; False (and no change) where an equal one is known."""
        if identifier.normal in self._by_normal:
            return False
        at = len(self._identifiers)
        if at == self._counts.shape[1]:
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        self._counts[:, at] = _count_characters(identifier.normal)
        self._identifiers.append(identifier)
        self._by_normal[identifier.normal] = identifier
        self._by_shape.setdefault(_shape(identifier.normal), []).append(identifier)
        return True

    def get(self, normal: str) -> KnownIdentifier | None:
        """The identifier with this normal form, or None."""
        return self._by_normal.get(normal)

    def nearest(self, normal: str, key: str = "", limit: int | None = None) -> Near | None:
        """The nearest identifier and its distance in edits; None where none is near.

        With ``limit`` it is at most that many edits away. Without, at most a third of the length; where there
        is none, it is the latest of the same shape under the same key.
        """
        reach = max(2, len(normal) // 3) if limit is None else limit
        shape = _shape(normal)
        best: tuple[tuple[float, int], KnownIdentifier, int] | None = None
        for identifier, least in self._near(normal, reach):
            if best is not None and least > best[2] + 1:  # shape and key outweigh one edit, never two
                break
            d = distance(normal, identifier.normal, reach if best is None else min(reach, best[2] + 1))
            if not 0 < d <= reach:
                continue
            bonus = 0.6 * (shape == _shape(identifier.normal)) + 0.5 * _is_same_key(key, identifier.key)
            if best is None or (d - bonus, -identifier.source) < best[0]:
                best = (d - bonus, -identifier.source), identifier, d
        if best is not None:
            return best[1], best[2]
        for identifier in reversed(self._by_shape.get(shape, ())[-_COMPARED:]) if limit is None else ():
            if _is_same_key(key, identifier.key):
                return identifier, distance(normal, identifier.normal, len(normal))
        return None

    def _near(self, normal: str, reach: int) -> Iterator[Near]:
        """The identifiers whose letters differ least, each with the fewest edits that this can mean."""
        counts = self._counts[:, : len(self._identifiers)]
        differ = np.abs(counts - _count_characters(normal)[:, None]).sum(axis=0, dtype=np.int16)
        chosen = np.flatnonzero(differ <= 2 * reach)  # one edit changes at most two counts
        if len(chosen) > _COMPARED:
            chosen = chosen[np.argpartition(differ[chosen], _COMPARED)[:_COMPARED]]
        for i in sorted(chosen.tolist(), key=lambda i: differ[i]):
            yield self._identifiers[i], (int(differ[i]) + 1) // 2


def _count_characters(normal: str) -> npt.NDArray[np.int8]:
    codes = normal[:100].encode("latin-1", "replace").translate(_DIMENSION_OF)
    return np.bincount(np.frombuffer(codes, np.uint8), minlength=_DIMENSIONS).astype(np.int8)


# the sources


@dataclass(frozen=True, slots=True)
class Source:
    """One text that the agent has seen, such as a tool's output; ``origin`` names the whole text, no place in it."""

    origin: Place
    text: str
    normal: str


def place_of(text: str, wanted: str) -> str:
    """The place of a value (in normal form) in a text: a JSON path, ``line N``, or ""."""
    value = inner_json(text) if len(text) <= _PLACED_CHARS else None
    for leaf in leaves(value, opened=inner_json) if value is not None else ():
        inner = leaf.value if isinstance(leaf.value, str) else compact(leaf.value)
        if find(normal(inner), wanted) >= 0:
            return leaf.path
    words = r"\s+".join(map(re.escape, wanted.split(" "))) if wanted.isascii() else ""
    match = re.search(words, text, re.I) if words else None
    return "" if match is None else f"line {text.count(chr(10), 0, match.start()) + 1}"


class SourceIndex:
    """The sources of one session; each is indexed once."""

    def __init__(self, session_id: str) -> None:
        self.lock = threading.RLock()
        self._transcript = Transcript(session_id, approximate_counter())
        self.reset()

    def reset(self) -> None:
        """Remove everything."""
        self.sources: list[Source] = []
        self.neighbours = Neighbourhood()
        self.has_records = False  # whether any tool has answered yet
        self.generation: int | None = None
        self._by_run: dict[str, list[int]] = {}  # the sources that hold a run of letters and digits
        self._joined: set[str] = set()  # identifiers without their separators
        # trace_ids, those of other sessions with their session_id, and other texts with their role
        self._known: set[str | tuple[str, str]] = set()
        self._read: Sequence[Any] = ()
        self._tools: object = None
        self._transcript.reset()

    def read_messages(self, messages: Sequence[Any], steps: dict[str, int]) -> None:
        """Add what is new in messages that the strategy has not seen."""
        self.read_view(self._transcript.update(messages), steps)

    def read_view(self, view: View, steps: dict[str, int]) -> None:
        """Add what is new in a view: messages, calls and results."""
        messages = view.messages
        n = min(len(self._read), len(messages))
        known = n if all(map(is_, messages[:n], self._read)) else 0
        entries = view.interactions
        stop = next((e.start for e in entries[-1:] if _is_open(e)), len(messages))
        # The interaction before the first new message may have been open when it was read.
        at = max(0, bisect_left(entries, known, key=lambda e: e.start) - 1)
        said = max(0, min(known, entries[at].start if at < len(entries) else known))
        for i in range(said, stop):
            while at < len(entries) and entries[at].stop <= i:
                self._add_results(entries[at], at, steps)
                at += 1
            self._add_message(messages[i])
        for number in range(at, len(entries)):
            self._add_results(entries[number], number, steps)
        self._read = list(messages[:stop])

    def read_records(self, records: Iterable[InteractionRecord]) -> None:
        """Add records whose messages are no longer available."""
        for r in records:
            self.add_record(_output_of(r), r.trace_id, r.tool_name, r.step_id)
            self._add("agent", r.input_text if r.input_text is not None else compact(r.raw_input))

    def read_brought(self, brought: Mapping[tuple[str, str], InteractionRecord]) -> None:
        """Add records of other sessions that contexts have shown, by session_id and trace_id."""
        for (session_id, trace_id), r in list(brought.items()):
            self.add_record(_output_of(r), trace_id, r.tool_name, r.step_id, session_id)

    def read_tools(self, tools: object) -> None:
        """Add the schemas of the tools."""
        if tools is not None and tools is not self._tools:
            self._tools = tools
            self._add("schema", compact(plain(tools)))

    def lacks(self, trace_ids: Iterable[str]) -> list[str]:
        """The trace_ids among ``trace_ids`` that are not indexed."""
        return [t for t in trace_ids if t not in self._known]

    def _add_message(self, message: object) -> None:
        role = _ROLES.get(kind_of(message))
        if role is not None:
            text = content_text(read(message, "content"))
            if role == "agent" or not text.lstrip().startswith(Mark.OPENING):
                self._add(role, text)

    def _add_results(self, entry: Interaction, number: int, steps: dict[str, int]) -> None:
        for pair, trace_id in zip(entry.pairs, entry.trace_ids, strict=True):
            if pair.call is not None and not _is_open(entry):
                self._add("agent", pair.call.text)
            if pair.result is not None and trace_id is not None:
                step = steps.get(trace_id, number + 1)
                self.add_record(pair.result.text, trace_id, pair.tool_name, step)

    def add_record(
        self, text: str, trace_id: str, tool: str, step: int, session_id: str | None = None
    ) -> None:
        """Add a tool's output; ``session_id`` names another session."""
        key = trace_id if session_id is None else (session_id, trace_id)
        if key not in self._known:
            self._known.add(key)
            self.has_records = True
            self._index(Place("record", "", trace_id, tool, step, session_id), text)

    def _add(self, role: Role, text: str) -> None:
        if text and (role, text) not in self._known:
            self._known.add((role, text))
            self._index(Place(role), text)

    def _index(self, origin: Place, text: str) -> None:
        number, source = len(self.sources), Source(origin, text, normal(text))
        self.sources.append(source)
        for run in set(runs(source.normal)):
            self._by_run.setdefault(run, []).append(number)
        if origin.role not in ("record", "user", "system"):
            return
        for value, kind, key, place in islice(_identifiers_of(source), _PROPOSED):
            identifier = KnownIdentifier(value, normal(value), kind, key, number, place)
            if not self.neighbours.add(identifier):
                continue
            joined = "".join(runs(identifier.normal))
            if joined != identifier.normal:
                self._joined.add(joined)
            is_path = kind in (ValueKind.PATH, ValueKind.URL)
            for part in PATH_JOINTS.split(value) if is_path else ():  # each may be named alone
                if 4 < len(part) < len(value):
                    name = replace(identifier, value=part, normal=normal(part), kind=ValueKind.NAME)
                    self.neighbours.add(name)

    def knows_joined(self, value: str) -> bool:
        """Whether a value (normal form) is known with other separators, such as 555-1234 for 5551234."""
        joined = "".join(runs(value))
        return len(joined) > 5 and (joined in self._joined or joined in self._by_run)

    def knows_run(self, run: str) -> bool:
        """Whether a run of letters and digits (normal form) is in any source."""
        return run in self._by_run

    def holders(self, value: str, limit: int = 3) -> list[Source]:
        """The sources that hold a value (normal form), oldest first, the agent's own words last."""
        lists = [self._by_run.get(run, []) for run in set(runs(value))]
        given: list[Source] = []
        own: list[Source] = []  # the first of the agent's
        for number in min(lists, key=len, default=[]):
            source = self.sources[number]
            found = own if source.origin.role == "agent" else given
            if not (found is own and own) and find(source.normal, value) >= 0:
                found.append(source)
                if len(given) >= limit:
                    break
        return given + own


def _output_of(record: InteractionRecord) -> str:
    return record.output_text if record.output_text is not None else compact(record.raw_output)


def _is_open(entry: Interaction) -> bool:
    """Whether a call of the turn has no result yet: it may be the call that is being checked."""
    return any(pair.result is None for pair in entry.pairs)


def _identifiers_of(source: Source) -> Iterator[tuple[str, ValueKind, str, str]]:
    value = inner_json(source.text) if source.origin.role == "record" else None
    if value is None:
        text = source.text[:_SCANNED_CHARS]
        line, last = 1, 0
        for token, kind, at in identifiers_in(text):
            line += text.count("\n", last, at)
            last = at
            yield token, kind, "", f"line {line}"
        return
    scanned = 0
    for leaf in leaves(value, opened=inner_json):
        if isinstance(leaf.value, str):
            scanned += len(leaf.value)
            if scanned > _SCANNED_CHARS:
                return
            kind = kind_of_text(leaf.value, leaf.key)
        elif isinstance(leaf.value, int) and not isinstance(leaf.value, bool):
            kind = kind_of_number(leaf.value, leaf.key)
        else:
            continue
        if kind in IDENTIFIERS:
            yield str(leaf.value).strip(), kind, leaf.key, leaf.path
        elif kind is ValueKind.TEXT:
            for token, inner, _ in identifiers_in(str(leaf.value)):
                yield token, inner, leaf.key, leaf.path
