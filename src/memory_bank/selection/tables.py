"""Tables of one session's evidence: its values, segments, records, and how often and when each was used."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import accumulate, count, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memory_bank.selection import values as val
from memory_bank.selection.effects import FileAccess

Array = NDArray[Any]
_RUN = re.compile(r"[^\W_]+")  # what str.isalnum takes: a form stands in a text only with its whole runs
OWN: dict[val.RecordKind, int] = {"output": 0, "note": 1, "arguments": 2}  # column `own` of the records
NEVER = -1_000_000  # an interaction before all others: the event has not happened


class Table:
    """Numpy columns of equal length that grow; `table[name]` is a view of the rows in use, not to be kept."""

    def __init__(self, **columns: tuple[str, float]) -> None:
        self._defaults = {name: value for name, (_, value) in columns.items()}
        self._data: dict[str, Array] = {n: np.full(256, v, dtype=d) for n, (d, v) in columns.items()}
        self.size = 0

    def grow(self, rows: int) -> int:
        """Append `rows` rows of default values; return the number of the first."""
        first, self.size = self.size, self.size + rows
        capacity = len(next(iter(self._data.values()), ()))
        if self.size > capacity:
            capacity = max(self.size, 2 * capacity)
            for name, old in self._data.items():
                new = np.full(capacity, self._defaults[name], dtype=old.dtype)
                new[:first] = old[:first]
                self._data[name] = new
        return first

    def append(self, **columns: Array | Sequence[float] | float) -> int:
        """Append rows with these columns; return the number of the first."""
        first = self.grow(max(len(c) for c in columns.values() if not isinstance(c, (int, float))))
        for name, column in columns.items():
            self[name][first:] = column
        return first

    def __getitem__(self, name: str) -> Array:
        return self._data[name][: self.size]


class Interner:
    """Numbers keys from 0 in the order in which they come; `table` has one row a key."""

    def __init__(self, **columns: tuple[str, float]) -> None:
        self.ids: defaultdict[Hashable, int] = defaultdict(count().__next__)
        self.table = Table(**columns)

    def __call__(self, keys: Iterable[Hashable]) -> list[int]:
        numbers = list(map(self.ids.__getitem__, keys))
        self.table.grow(len(self.ids) - self.table.size)
        return numbers

    def flags(self, keys: Iterable[Hashable]) -> Array:
        """Return for each known key whether it is among `keys`."""
        out = np.zeros(self.table.size, dtype=bool)
        out[[number for key in keys if (number := self.ids.get(key)) is not None]] = True
        return out

    def flag_shown(self, keys: Collection[Hashable], first: int) -> None:
        """Set column `shown` of the keys from number `first` on: whether each is among `keys`."""
        new = list(islice(reversed(self.ids), self.table.size - first))
        self.table["shown"][first:] = [key in keys for key in reversed(new)]


_INT, _REAL, _TIME = ("i4", 0), ("f4", 0.0), ("i4", NEVER)


class ValueLists:
    """Values of a record that form a list: those under one key (`column`) or of one shape (`like`).

    `table` has one row a list: `used` uses of its values, the latest at interaction `used_at` of the value at
    position `last_at`; `size` values. Row 0 is the list of values that have no place yet.
    """

    def __init__(self, name: str, successor: str) -> None:
        self.name, self.successor = name, successor
        self.table = Table(used=_REAL, last_at=_TIME, used_at=_TIME, size=_REAL)
        self.table.grow(1)
        self.members: list[Array] = [np.zeros(0, np.int32)]

    def add(self, ids: Array, of: Sequence[int], values: Table) -> None:
        """Add a list for the values with each number in ``of``, and set each value's list and position."""
        groups: dict[int, list[int]] = {}
        for value, number in zip(ids.tolist(), of, strict=True):
            groups.setdefault(number, []).append(value)
        arrays = [np.array(group, np.int32) for group in groups.values()]
        sizes = [len(a) for a in arrays]
        first = self.table.append(size=sizes)
        self.members += arrays
        ids = np.concatenate(arrays)
        values[self.name][ids] = np.repeat(np.arange(first, first + len(arrays)), sizes)
        values[self.name + "_at"][ids] = np.concatenate([np.arange(n) for n in sizes])


class EvidenceTables:
    """All calls and remarks of a session, as columns. Append-only; interactions come in order."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}  # of values, by form
        self.forms: list[str] = []
        # Interactions: `seen` last shown, used or named, `used` and `first_use` by a call. Of neighbours:
        # `row_used` a value of the segment, `successor` one up to two places before it in its list.
        # Where it was shown last: `record`, `segment`, `rank` in the record, `key`, `source` (tool and key),
        # lists `column` and `like` with the position in each. `agent`: the agent wrote it first.
        self.values = Table(
            kind=_INT, length=_REAL, shape=_INT, digits=_REAL, words=_REAL, cell=_REAL, agent=_REAL,
            visible=("?", 0), overlap=_REAL, seen=_TIME, record=("i4", -1), segment=("i4", -1), rank=_INT,
            key=_INT, source=_INT, column=_INT, column_at=_INT, like=_INT, like_at=_INT, records=_REAL,
            uses=_REAL, leaf_uses=_REAL, used=_TIME, first_use=_TIME, successor=_TIME, successor_by=_REAL,
            like_successor=_TIME, row_used=_TIME, row_uses=_REAL, word_weight=_REAL, has_event=("?", 0),
            changed=("?", 1), run=_INT,
        )  # fmt: skip
        self.runs = Interner(shown=("?", 0))  # of letters and digits, with which values begin; "": none
        self.eventful = Table(value=_INT)  # values with an event that ages: they were used or followed
        self.records = Table(interaction=_INT, tool=_INT, values=_REAL, own=_REAL, error=_REAL, stale=_REAL,
            file=_INT, segments=_REAL,
        )  # fmt: skip
        self.segments = Table(
            record=_INT, tokens=_INT, gap=_INT, block=_INT, place=_INT, start=_INT, count=_INT,
            factor=("f4", 1.0), copied=_REAL, chars=_REAL, lines=_REAL, structure=_REAL,
            text=_INT,
        )  # fmt: skip
        self.texts = Interner(last=_INT)  # of segments, with the last segment that has each
        self.pairs = Table(value=_INT)  # values by segment: `start` and `count` of the segment
        self.words = Interner(count=_REAL, shown=("?", 0))  # with the segments that have each
        self.value_terms = Table(value=_INT, word=_INT, weight=_REAL)  # words by value
        self.tools = Interner(last=_INT)  # with the last record of each
        self.keys = Interner(total=_REAL, used=_REAL, used_at=_TIME)
        self.sources = Interner(total=_REAL, used=_REAL, used_at=_TIME)
        self.shapes = Interner(total=_REAL, used=_REAL, used_at=_TIME)
        self.kinds = Table(total=_REAL, used=_REAL)
        self.kinds.grow(len(val.KINDS))
        self.columns = ValueLists("column", "successor")
        self.likes = ValueLists("like", "like_successor")
        self.owners = {
            "kind": self.kinds, "key": self.keys.table, "source": self.sources.table,
            "shape": self.shapes.table, "like": self.likes.table, "record": self.records,
            "segment": self.segments,
        }  # fmt: skip
        self.next_tools: dict[int, Counter[int]] = {}
        self.tool_calls: Counter[int] = Counter()
        # what each tool's calls used, with counts
        self.inputs: dict[str, dict[int, Counter[int]]] = {name: {} for name in ("source", "shape", "key")}
        self.argument_words: set[str] = set()  # of the names of arguments
        self.files = Interner(last=_TIME)  # with the last interaction that read or changed each; 0: no file
        self.files([""])
        self.parsed: list[val.ParsedRecord] = []
        self.copies: dict[str, list[tuple[str, int]]] = {}  # by file: (part, record) that show its text
        self.first_segment: list[int] = []  # of each record
        self.last_tool = 0
        self.anchor: list[str] = []
        self._new: list[tuple[int, str]] = []  # kind and spelling of values whose rows are not filled yet
        self._anchor_texts: dict[str, _AnchorText] = {}
        self._shown = _NO_TEXT
        self._anchored = 0, 0, 0  # values, words and runs that were compared with the anchor
        self.tools([""])
        self.keys([""])

    # -- adding ----------------------------------------------------------------
    def add(self, item: val.ParsedRecord) -> int:
        """Add one output, remark or arguments; return the number of its record."""
        record = self.records.grow(1)
        self.parsed.append(item)
        (tool,) = self.tools([item.tool])
        if item.kind == "output":
            self._add_uses(item, tool)
            self.last_tool = tool
        self._add_text(item, record, tool)
        if item.file is not None and not item.error:
            self._add_copy(item.file, record, item)
        return record

    def _new_value(self, form: str, kind: int, text: str = "") -> int:
        """Number a value; `_describe_new` fills its row."""
        value = self.ids[form] = self.values.grow(1)
        self.forms.append(form)
        self._new.append((kind, text or form))
        return value

    def _describe_new(self) -> None:
        """Fill the rows of the values that are new, all at once."""
        if not self._new:
            return
        v, new = self.values, self._new
        first = v.size - len(new)
        forms = self.forms[first:]
        kinds = [kind for kind, _ in new]
        np.add.at(self.kinds["total"], kinds, 1)
        v["kind"][first:] = kinds
        v["length"][first:] = [len(form) for form in forms]
        v["shape"][first:] = self.shapes(
            val.KINDS[kind] if kind in (val.KIND["phrase"], val.KIND["name"]) else val.shape_of(form)
            for form, kind in zip(forms, kinds, strict=True)
        )
        v["words"][first:] = [min(6, form.count(" ") + 1) for form in forms]
        v["digits"][first:] = [sum(map(str.isdigit, form)) / len(form) for form in forms]
        runs = [_RUN.search(form) for form in forms]
        v["run"][first:] = self.runs([run[0] if run else "" for run in runs])
        parts = [dict.fromkeys(val.words_of(text)) for _, text in new]
        words = self.words(part for of_value in parts for part in of_value)
        weights = 1 / np.sqrt(1 + self.words.table["count"][words])
        sizes = list(map(len, parts))
        values = np.repeat(np.arange(first, v.size), sizes)
        self.value_terms.append(value=values, word=words, weight=weights)
        ends = zip(sizes, accumulate(sizes), strict=True)
        v["word_weight"][first:] = [np.add.reduce(weights[end - size : end]) for size, end in ends]
        self._new = []

    def _add_uses(self, item: val.ParsedRecord, tool: int) -> None:
        """Add what a call used: of its values, and of the records, keys and lists that supplied them."""
        now, v = item.interaction, self.values
        taken: dict[str, set[int]] = {name: set() for name in self.inputs}
        touched: list[int] = []
        self.tool_calls[tool] += 1
        self.next_tools.setdefault(self.last_tool, Counter())[tool] += 1
        for use in item.uses:
            self.argument_words |= val.key_words(use.key)
            value = self.ids.get(use.form)
            if value is None:
                kind = val.kind_of(use.form)
                if use.leaf or kind != val.KIND["word"]:
                    value = self._new_value(use.form, val.KIND["phrase"] if " " in use.form else kind)
                    v["agent"][value] = v["uses"][value] = 1
                    v["used"][value] = v["seen"][value] = v["first_use"][value] = now
                    touched.append(value)
                continue
            touched.append(value)
            v["uses"][value] += 1
            v["leaf_uses"][value] += use.leaf
            v["used"][value] = v["seen"][value] = now
            if v["first_use"][value] == NEVER:
                v["first_use"][value] = now
            plain = v["kind"][value] in (val.KIND["capital"], val.KIND["word"])
            if v["record"][value] >= 0 and not v["visible"][value] and (use.leaf or not plain):
                self._add_supply(value, now)
                for name in taken:
                    taken[name].add(int(v[name][value]))
        self._describe_new()
        if touched:
            self._touch(np.array(touched, np.int32), event=True)
        for name, numbers in taken.items():
            self.inputs[name].setdefault(tool, Counter()).update(numbers)

    def _add_supply(self, value: int, now: int) -> None:
        """Add that a call at interaction `now` used a value that a record showed."""
        v = self.values
        self.kinds["used"][v["kind"][value]] += 1
        for name, owners in (("key", self.keys), ("source", self.sources), ("shape", self.shapes)):
            owners.table["used"][v[name][value]] += 1
            owners.table["used_at"][v[name][value]] = now
        for lists in (self.columns, self.likes):
            number, place = int(v[lists.name][value]), int(v[lists.name + "_at"][value])
            members = lists.members[number]
            lists.table["used"][number] += 1
            lists.table["used_at"][number] = now
            lists.table["last_at"][number] = place
            following = members[place + 1 : place + 3]
            v[lists.successor][following] = now
            if lists is self.columns:
                v["successor_by"][following] = 1 / np.arange(1, len(following) + 1)
            self._touch(members, event=False)
            self._touch(following, event=True)
        row = self.values_of(int(v["segment"][value])).copy()
        v["row_used"][row] = now
        v["row_uses"][row] += 1
        self._touch(row, event=True)

    def _add_copy(self, file: FileAccess, record: int, item: val.ParsedRecord) -> None:
        """Count a record as one that shows a file: earlier copies are stale from now on, half stale after an edit."""
        (number,) = self.files([file.path])
        self.records["file"][record] = number
        self.files.table["last"][number] = item.interaction
        copies = self.copies.setdefault(file.path, [])
        stale = self.records["stale"]
        if item.kind == "output":
            for part, other in copies:
                if file.access == "edit":
                    stale[other] = max(stale[other], 0.5)
                elif part == file.part or not file.part:
                    stale[other] = 1.0
        if (item.kind == "output") == (file.access == "read"):
            copies.append((file.part, record))

    def _add_text(self, item: val.ParsedRecord, record: int, tool: int) -> None:
        now, v, r = item.interaction, self.values, self.records
        texts = self.texts(s.text for s in item.cut.segments)
        cut = item.cut.segments
        first = self.segments.append(
            tokens=item.tokens, gap=item.gaps, block=[s.block for s in cut], place=np.arange(len(cut)),
            chars=[len(s.text) for s in cut], lines=[s.text.count("\n") for s in cut],
            structure=[s.structured for s in cut], text=texts,
        )  # fmt: skip
        self.texts.table["last"][texts] = np.arange(first, first + len(texts))
        self.segments["record"][first:] = record
        self.first_segment.append(first)
        shown: dict[int, tuple[int, val.Candidate]] = {}  # value: segment and candidate of its first place
        pairs: list[int] = []
        counts = np.zeros(len(item.candidates), dtype=np.int32)
        for segment, candidates in enumerate(item.candidates):
            for c in candidates:
                value = self.ids.get(c.form)
                if value is None:
                    value = self._new_value(c.form, c.kind, c.text)
                elif item.kind == "arguments" and not v["agent"][value]:
                    continue  # a value of an output: arguments do not say what it belongs to
                shown.setdefault(value, (first + segment, c))
                pairs.append(value)
                counts[segment] += 1
        self._describe_new()
        start = self.pairs.append(value=pairs)
        self.segments["count"][first:] = counts
        self.segments["start"][first:] = start + np.cumsum(counts) - counts
        words = self.words(text for of_segment in item.words for text in of_segment)
        np.add.at(self.words.table["count"], np.array(words, np.int32), 1)
        r["interaction"][record] = now
        r["tool"][record] = tool
        r["values"][record] = len(shown)
        r["segments"][record] = len(item.tokens)
        r["own"][record] = OWN[item.kind]
        r["error"][record] = item.error
        self.tools.table["last"][tool] = record
        ids = np.fromiter(shown, dtype=np.int32, count=len(shown))
        ranks = np.arange(len(ids))
        v["seen"][ids] = now
        self._touch(ids, event=False)
        if item.kind == "output":
            v["records"][ids] += 1
        else:  # where an output showed a value last stays its place
            ranks = np.flatnonzero(v["record"][ids] < 0)
            ids = ids[ranks]
            v["agent"][ids] = 1
        if not len(ids):
            return
        places = [shown[value] for value in ids.tolist()]
        keys = self.keys([c.key for _, c in places])
        sources = self.sources([(tool, key) for key in keys])
        shapes = v["shape"][ids].tolist()
        self.columns.add(ids, keys, v)
        self.likes.add(ids, shapes, v)
        v["record"][ids] = record
        v["segment"][ids] = [segment for segment, _ in places]
        v["cell"][ids] = [c.cell for _, c in places]
        v["rank"][ids] = ranks
        v["key"][ids] = keys
        v["source"][ids] = sources
        for owners, numbers in ((self.keys, keys), (self.sources, sources), (self.shapes, shapes)):
            np.add.at(owners.table["total"], numbers, 1)

    # -- the anchor ------------------------------------------------------------
    def set_anchor(self, texts: Sequence[str]) -> None:
        """Compare the values with the texts of the anchor: those that it shows are `visible`.

        That a call uses a visible value is not counted: set the anchor of its time before you add a record.
        """
        if list(texts) != self.anchor:
            self.anchor = list(texts)
            self._anchor_texts = {t: self._anchor_texts.get(t) or _AnchorText.of(t) for t in texts}
            folded = " ".join(filter(None, [self._anchor_texts[t].folded for t in texts]))
            by_kind = zip(*(text[1:] for text in [_NO_TEXT, *self._anchor_texts.values()]), strict=True)
            self._shown = _AnchorText(folded, *(set().union(*sets) for sets in by_kind))
            self._anchored = 0, 0, 0
        v, words, runs = self.values, self.words.table, self.runs.table
        first, first_word, first_run = self._anchored
        if first == v.size:
            return
        self._anchored = v.size, words.size, runs.size
        self.words.flag_shown(self._shown.words, first_word)
        self.runs.flag_shown(self._shown.runs, first_run)
        forms = self._shown.forms
        visible = np.array([form in forms for form in self.forms[first:]])
        for n in np.flatnonzero(runs["shown"][v["run"][first:]] & ~visible).tolist():
            visible[n] = val.stands_in(self.forms[first + n], self._shown.folded)
        v["visible"][first:] = visible
        terms = self.value_terms
        start = int(np.searchsorted(terms["value"], first))
        of_value = terms["value"][start:] - first
        named = words["shown"][terms["word"][start:]]
        number = np.bincount(of_value, minlength=v.size - first).clip(1)
        v["overlap"][first:] = np.bincount(of_value, weights=named, minlength=v.size - first) / number
        v["changed"][first:] = True

    # -- asking ----------------------------------------------------------------
    def values_of(self, segment: int) -> Array:
        """Return the values of a segment."""
        start = int(self.segments["start"][segment])
        return self.pairs["value"][start : start + int(self.segments["count"][segment])]

    def place_of(self, segment: int) -> tuple[int, int]:
        """Return the record of a segment, and its place there."""
        return int(self.segments["record"][segment]), int(self.segments["place"][segment])

    def standing_in(self, text: str) -> Array:
        """Return the values that stand in a folded text, those without letters and digits at the start aside."""
        inside = self.runs.flags(_RUN.findall(text))[self.values["run"]]
        return np.array(
            [v for v in np.flatnonzero(inside).tolist() if val.stands_in(self.forms[v], text)], np.int32
        )

    def sum_by_segment(self, amounts: Array, last: int) -> Array:
        """Return the sum of the amounts, which are by value, of each of the first `last` segments."""
        start, number = self.segments["start"][:last], self.segments["count"][:last]
        out = np.zeros(last, amounts.dtype)
        filled = np.flatnonzero(number)
        if len(filled):
            end = int(start[filled[-1]] + number[filled[-1]])
            out[filled] = np.add.reduceat(amounts[self.pairs["value"][:end]], start[filled])
        return out

    def records_before(self, interaction: int) -> int:
        """Return how many records are older than an interaction."""
        return int(np.searchsorted(self.records["interaction"], interaction))

    def segments_before(self, interaction: int) -> int:
        """Return how many segments are of records older than an interaction."""
        older = self.records_before(interaction)
        return self.first_segment[older] if older < self.records.size else self.segments.size

    def next_tool_shares(self, last_tool: int) -> list[tuple[int, float]]:
        """Return (tool, share / its calls) of the tools that may come after `last_tool`, by past calls."""
        after = self.next_tools.get(last_tool, Counter[int]())
        total = sum(after.values()) + 1.0
        calls = sum(self.tool_calls.values())
        shares = ((t, (after.get(t, 0.0) + n / calls) / total, n) for t, n in self.tool_calls.items())
        return [(tool, share / (number + 0.5)) for tool, share, number in shares if share > 0.01]

    def left_of_lists(self, now: int, uses: int, pause: int, most: int) -> Array:
        """Return for each value its nearness, 1 to 0, to the latest use of a list that calls work off one by one.

        A list is the values under one key of a record. It is worked off where calls used ``uses`` of its values or
        more, the latest at most ``pause`` interactions ago; its ``most`` nearest values without a use are left. Where
        the uses are not next to one another, any may come next: then up to four times as many, all of them near.
        """
        lists, v = self.columns.table, self.values
        nearness = np.zeros(v.size)
        for number in np.flatnonzero((lists["used"] >= uses) & (lists["used_at"] >= now - pause)).tolist():
            members = self.columns.members[number]
            is_used = v["leaf_uses"][members] > 0
            begins, times = np.unique(v["run"][members[is_used]], return_counts=True)
            alike = np.isin(v["run"][members], begins[times >= uses])  # such as ORD-… in lines of text
            members = members[(v["cell"][members] > 0) | alike]  # not the parts of values
            is_used = v["leaf_uses"][members] > 0
            if is_used.sum() >= uses:
                near = np.argsort(np.abs(v["column_at"][members] - lists["last_at"][number]), kind="stable")
                places = np.flatnonzero(is_used)
                in_order = places[-1] - places[0] < 1.25 * len(places) + 8
                left = members[near[~is_used[near]]][: most if in_order else 4 * most]
                close = np.linspace(1, 0 if in_order else 0.9, len(left), endpoint=False)
                nearness[left] = np.maximum(nearness[left], close)
        nearness[v["visible"]] = 0
        return nearness

    # -- what changed ----------------------------------------------------------
    def _touch(self, ids: Array, event: bool) -> None:
        """Count values as changed; `event`: by an event that ages (see `eventful`)."""
        self.values["changed"][ids] = True
        if event:
            fresh = np.unique(ids[~self.values["has_event"][ids]])
            self.values["has_event"][fresh] = True
            self.eventful.append(value=fresh)

    def evaluate_anew(self) -> None:
        """Mark all values as changed, so that the next selection does not depend on earlier ones."""
        self.values["changed"][:] = True
        self._anchored = 0, 0, 0

    def pop_changed_values(self) -> Array:
        """Return the values that changed since the last call of this."""
        changed = np.flatnonzero(self.values["changed"])
        self.values["changed"][changed] = False
        return changed


class _AnchorText(NamedTuple):
    """A text of the anchor as values are compared with it, and the forms, runs and words in it."""

    folded: str
    forms: set[str]
    runs: set[str]
    words: set[str]

    @classmethod
    def of(cls, text: str) -> _AnchorText:
        folded = val.fold(text)
        return cls(folded, set(val.forms_in(text)), {"", *_RUN.findall(folded)}, set(val.words_of(folded)))


_NO_TEXT = _AnchorText.of("")
