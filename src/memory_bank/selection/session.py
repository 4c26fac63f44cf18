"""The counters of one session: what was seen where, what was used, what stands next to it."""

from __future__ import annotations

import re

import numpy as np

from memory_bank.selection.candidates import (
    KIND,
    KINDS,
    find_mentions,
    kind_of,
    shape_of,
    words_of,
)
from memory_bank.selection.prepared import Prepared
from memory_bank.selection.tables import Array, Interner, Table

NEVER = -1_000_000
_SYMBOLS = "{}()[]<>=;+\\"


class Session:
    """All prepared calls and notes of a session, as columns. Append-only."""

    def __init__(self) -> None:
        n = ("i4", NEVER)
        z = ("f4", 0.0)
        i = ("i4", 0)
        self.ids: dict[str, int] = {}
        self.forms: list[str] = []
        self.parts: list[tuple[str, ...]] = []
        self.values = Table(
            kind=i,
            length=z,
            shape=i,
            digits=z,
            words=z,
            cell=z,
            agent=z,
            visible=("?", 0),
            overlap=z,
            first=n,
            seen=n,
            out=n,
            record=("i4", -1),
            segment=("i4", -1),
            rank=i,
            key=i,
            source=i,
            column=i,
            column_at=i,
            like=i,
            like_at=i,
            records=z,
            uses=z,
            leaf_uses=z,
            used=n,
            notes=z,
            noted=n,
            successor=n,
            successor_by=z,
            like_successor=n,
            row_used=n,
            row_uses=z,
            after_used=n,
            first_use=n,
            word_weight=z,
            timed=("?", 0),
            changed=("?", 1),
        )
        self.timed = Table(value=i)
        self._changed_segment = 0
        self.records = Table(
            interaction=i,
            tool=i,
            values=z,
            size=z,
            ordinal=z,
            supplied=z,
            supplied_at=n,
            note=z,
            error=z,
            echo=z,
            used_place=n,
        )
        self.segments = Table(record=i, tokens=i, block=i, place=i, start=i, count=i, task=z, symbols=z)
        self.pairs = Table(segment=i, value=i)
        self.terms = Table(segment=i, word=i, weight=z)
        self.words = Interner(count=z)
        self.value_terms = Table(value=i, word=i, weight=z)
        self.tools = Interner(records=z, supplied=z, supplied_at=n, used_values=z)
        self.keys = Interner(total=z, used=z, used_at=n, argument=z)
        self.sources = Interner(total=z, used=z, used_at=n)
        self.shapes = Interner(total=z, used=z, used_at=n)
        self.columns = Table(used=z, last_at=n, used_at=n, size=z)
        self.likes = Table(used=z, last_at=n, used_at=n, size=z)
        self.kinds = Table(total=z, used=z)
        self.kinds.grow(len(KINDS))
        self.column_values: list[Array] = []
        self.like_values: list[Array] = []
        self.follow: dict[tuple[int, int], float] = {}
        self.next_tools: dict[int, dict[int, float]] = {}
        self.tool_calls: dict[int, float] = {}
        self.tool_sources: dict[int, dict[int, float]] = {}
        self.tool_shapes: dict[int, dict[int, float]] = {}
        self.tool_keys: dict[int, dict[int, float]] = {}
        self.tool_arguments: dict[int, dict[int, float]] = {}
        self.argument_words: set[str] = set()
        self.key_overlap: list[float] = []
        self._keys_known = -1
        self.prepared: list[Prepared] = []
        self.first_segment: list[int] = []
        self.first_term: list[int] = []
        self.last_tool = 0
        self.interactions = 0
        self.tools("")
        self.keys("")
        for table, members in ((self.columns, self.column_values), (self.likes, self.like_values)):
            table.grow(1)  # what has no place yet
            members.append(np.zeros(0, np.int32))

    # -- values ---------------------------------------------------------------
    def _new_value(self, form: str, kind: int, interaction: int, text: str = "") -> int:
        value = self.ids[form] = self.values.grow(1)
        self.forms.append(form)
        v = self.values
        v["kind"][value] = kind
        v["length"][value] = len(form)
        v["shape"][value] = self.shapes(
            shape_of(form) if kind not in (KIND["phrase"], KIND["name"]) else KINDS[kind]
        )
        v["words"][value] = min(6, form.count(" ") + 1)
        self.kinds["total"][kind] += 1
        v["digits"][value] = sum(c.isdigit() for c in form) / len(form)
        v["first"][value] = interaction
        parts = tuple(dict.fromkeys(words_of(text or form)))
        self.parts.append(parts)
        if parts:
            start = self.value_terms.grow(len(parts))
            words = [self.words(part) for part in parts]
            weights = 1 / np.sqrt(1 + self.words.table["count"][words])
            self.value_terms["value"][start:] = value
            self.value_terms["word"][start:] = words
            self.value_terms["weight"][start:] = weights
            v["word_weight"][value] = weights.sum()
        return value

    def _touch(self, ids: Array, timed: bool) -> None:
        """Note that values changed; `timed`: something happened to them that ages (`timed_columns`)."""
        self.values["changed"][ids] = True
        if timed:
            fresh = np.unique(ids[~self.values["timed"][ids]])
            if len(fresh):
                self.values["timed"][fresh] = True
                start = self.timed.grow(len(fresh))
                self.timed["value"][start:] = fresh

    def touch_segments(self, first: int) -> None:
        """Note that segments from `first` on changed."""
        self._changed_segment = min(self._changed_segment, first)

    def take_changed_segments(self) -> int:
        """The first segment that changed since the last time this was asked."""
        first, self._changed_segment = self._changed_segment, self.segments.size
        return first

    def take_changed(self) -> Array:
        """The values that changed since the last time this was asked, each once."""
        changed = np.flatnonzero(self.values["changed"])
        self.values["changed"][changed] = False
        return changed

    def add(self, item: Prepared) -> int:
        """Take in one call or note; the number of its record."""
        record = self.records.grow(1)
        self.prepared.append(item)
        self.interactions = max(self.interactions, item.interaction + 1)
        tool = self.tools(item.tool)
        if not item.note:
            self._uses(item, tool)
            self.last_tool = tool
        self._outputs(item, record, tool)
        return record

    def _uses(self, item: Prepared, tool: int) -> None:
        now, v = item.interaction, self.values
        touched_tools: set[int] = set()
        sources: set[int] = set()
        shapes: set[int] = set()
        keys: set[int] = set()
        arguments: set[int] = set()
        touched: list[int] = []
        self.tool_calls[tool] = self.tool_calls.get(tool, 0.0) + 1
        after = self.next_tools.setdefault(self.last_tool, {})
        after[tool] = after.get(tool, 0.0) + 1
        for use in item.uses:
            if use.key and use.leaf:
                key = self.keys(use.key)
                self.keys.table["argument"][key] += 1
                arguments.add(key)
                if self.keys.table["argument"][key] == 1:
                    self.argument_words.update(_name_words(use.key))
                    self._keys_known = -1
            value = self.ids.get(use.form)
            if value is None:
                if use.leaf or kind_of(use.form) != KIND["word"]:
                    value = self._new_value(
                        use.form, kind_of(use.form) if " " not in use.form else KIND["phrase"], now
                    )
                    v = self.values
                    v["agent"][value] = 1
                    v["uses"][value] = 1
                    v["used"][value] = v["seen"][value] = v["first_use"][value] = now
                    touched.append(value)
                continue
            touched.append(value)
            v["uses"][value] += 1
            if v["first_use"][value] == NEVER:
                v["first_use"][value] = now
            v["leaf_uses"][value] += use.leaf
            v["used"][value] = v["seen"][value] = now
            origin = int(v["record"][value])
            if origin < 0 or v["visible"][value]:
                continue
            if not use.leaf and v["kind"][value] in (KIND["capital"], KIND["word"]):
                continue
            self._supplied(value, origin, now, touched_tools)
            sources.add(int(v["source"][value]))
            shapes.add(int(v["shape"][value]))
            keys.add(int(v["key"][value]))
        if touched:
            self._touch(np.array(touched, np.int32), timed=True)
        for table, members in (
            (self.tool_sources, sources),
            (self.tool_shapes, shapes),
            (self.tool_keys, keys),
            (self.tool_arguments, arguments),
        ):
            counts = table.setdefault(tool, {})
            for number in members:
                counts[number] = counts.get(number, 0.0) + 1

    def expected(self, last_tool: int) -> list[tuple[int, float]]:
        """Tools that may come next with their share, from this session; divided by their calls."""
        after = self.next_tools.get(last_tool, {})
        total = sum(after.values()) + 1.0
        calls = sum(self.tool_calls.values())
        out = []
        for tool, number in self.tool_calls.items():
            share = (after.get(tool, 0.0) + number / calls) / total
            if share > 0.01:
                out.append((tool, share / (number + 0.5)))
        return out

    def overlap_of_keys(self) -> Array:
        """By key: share of its words that names of arguments have."""
        size = self.keys.table.size
        if self._keys_known < 0:
            self.key_overlap = []
        if self._keys_known < size:
            for name in list(self.keys.ids)[len(self.key_overlap) :]:
                parts = _name_words(name)
                self.key_overlap.append(
                    sum(p in self.argument_words for p in parts) / len(parts) if parts else 0.0
                )
            self._keys_known = size
        return np.array(self.key_overlap, dtype=np.float32)

    def _supplied(self, value: int, origin: int, now: int, touched: set[int]) -> None:
        """Book that `value`, last shown by record `origin`, was used at interaction `now`."""
        v, r = self.values, self.records
        r["supplied"][origin] += 1
        self.kinds["used"][v["kind"][value]] += 1
        r["supplied_at"][origin] = now
        r["used_place"][origin] = self.segments["place"][v["segment"][value]]
        origin_tool = int(r["tool"][origin])
        tools = self.tools.table
        tools["used_values"][origin_tool] += 1
        tools["supplied_at"][origin_tool] = now
        if origin_tool not in touched:
            touched.add(origin_tool)
            tools["supplied"][origin_tool] += 1
            pair = (self.last_tool, origin_tool)
            self.follow[pair] = self.follow.get(pair, 0.0) + 1
        for table, number in (
            (self.keys.table, v["key"][value]),
            (self.sources.table, v["source"][value]),
            (self.shapes.table, v["shape"][value]),
        ):
            table["used"][number] += 1
            table["used_at"][number] = now
        for owner, members, name, at, mark in (
            (self.columns, self.column_values, "column", "column_at", "successor"),
            (self.likes, self.like_values, "like", "like_at", "like_successor"),
        ):
            number, place = int(v[name][value]), int(v[at][value])
            owner["used"][number] += 1
            owner["used_at"][number] = now
            owner["last_at"][number] = place
            self._touch(members[number], timed=False)
            following = members[number][place + 1 : place + 3]
            self._touch(following, timed=True)
            for step, other in enumerate(following.tolist()):
                v[mark][other] = now
                if mark == "successor":
                    v["successor_by"][other] = 1.0 / (1 + step)
        segment = int(v["segment"][value])
        start, size = int(self.segments["start"][segment]), int(self.segments["count"][segment])
        row = self.pairs["value"][start : start + size].copy()
        v["row_used"][row] = now
        v["row_uses"][row] += 1
        self._touch(row, timed=True)
        where = np.flatnonzero(row == value)
        if len(where) and where[0] + 1 < size:
            v["after_used"][row[where[0] + 1]] = now

    def _outputs(self, item: Prepared, record: int, tool: int) -> None:
        now, v = item.interaction, self.values
        first = self.segments.grow(len(item.tokens))
        self.first_segment.append(first)
        seg = self.segments
        seg["record"][first:] = record
        seg["tokens"][first:] = item.tokens
        seg["block"][first:] = [s.block for s in item.pieces.segments]
        seg["symbols"][first:] = [_symbols(s.text) for s in item.pieces.segments]
        seg["place"][first:] = np.arange(len(item.tokens))
        order: dict[int, tuple[int, int, str, bool]] = {}
        pair_segment: list[int] = []
        pair_value: list[int] = []
        for number, found in enumerate(item.candidates):
            for c in found:
                value = self.ids.get(c.form)
                if value is None:
                    value = self._new_value(c.form, c.kind, now, c.text)
                if value not in order:
                    order[value] = (first + number, len(order), c.key, c.cell)
                pair_segment.append(first + number)
                pair_value.append(value)
        v = self.values
        start = self.pairs.grow(len(pair_value))
        self.pairs["segment"][start:] = pair_segment
        self.pairs["value"][start:] = pair_value
        counts = np.array([len(c) for c in item.candidates], dtype=np.int32)
        if len(counts):
            seg["count"][first:] = counts
            seg["start"][first:] = start + np.cumsum(counts) - counts
        self._terms(item, first)
        r = self.records
        r["interaction"][record] = now
        r["tool"][record] = tool
        r["values"][record] = len(order)
        r["size"][record] = item.pieces.chars
        r["ordinal"][record] = self.tools.table["records"][tool]
        r["note"][record] = item.note
        r["error"][record] = item.error
        self.tools.table["records"][tool] += 1
        if not order:
            return
        ids = np.fromiter(order, dtype=np.int32, count=len(order))
        if item.note:
            v["notes"][ids] += 1
            v["noted"][ids] = v["seen"][ids] = now
            fresh = ids[v["record"][ids] < 0]
            v["agent"][fresh] = 1
            self._place(fresh, record, tool, {int(i): order[int(i)] for i in fresh})
        else:
            r["echo"][record] = float((v["out"][ids] > NEVER).mean())
            v["seen"][ids] = v["out"][ids] = now
            v["records"][ids] += 1
            self._place(ids, record, tool, order)
        self._touch(ids, timed=bool(item.note))

    def _place(
        self, ids: Array, record: int, tool: int, order: dict[int, tuple[int, int, str, bool]]
    ) -> None:
        """Set where values were shown last: record, segment, key, column."""
        if not len(ids):
            return
        v = self.values
        shapes = v["shape"][ids].tolist()
        keys, sources = [], []
        columns: dict[int, list[int]] = {}
        likes: dict[int, list[int]] = {}
        for value, shape in zip(ids.tolist(), shapes, strict=True):
            key = self.keys(order[value][2])
            keys.append(key)
            sources.append(self.sources((tool, key)))
            columns.setdefault(key, []).append(value)
            likes.setdefault(shape, []).append(value)
        for name, groups, table, members in (
            ("column", columns, self.columns, self.column_values),
            ("like", likes, self.likes, self.like_values),
        ):
            first = table.grow(len(groups))
            table["size"][first:] = [len(group) for group in groups.values()]
            for number, group in enumerate(groups.values(), first):
                array = np.array(group, np.int32)
                members.append(array)
                v[name][array] = number
                v[name + "_at"][array] = np.arange(len(array))
        v["record"][ids] = record
        v["segment"][ids] = [order[i][0] for i in ids.tolist()]
        v["rank"][ids] = [order[i][1] for i in ids.tolist()]
        v["cell"][ids] = [order[i][3] for i in ids.tolist()]
        v["key"][ids] = keys
        v["source"][ids] = sources
        np.add.at(self.keys.table["total"], keys, 1)
        np.add.at(self.sources.table["total"], sources, 1)
        np.add.at(self.shapes.table["total"], shapes, 1)

    def _terms(self, item: Prepared, first: int) -> None:
        segment, word = [], []
        for number, words in enumerate(item.words):
            for text in words:
                segment.append(first + number)
                word.append(self.words(text))
        start = self.terms.grow(len(word))
        self.terms["segment"][start:] = segment
        self.terms["word"][start:] = word
        self.first_term.append(start)
        if word:
            counts = self.words.table["count"]
            np.add.at(counts, word, 1)
            self.terms["weight"][start:] = 1 / np.sqrt(counts[word])

    def mark_visible(self, texts_folded: str, known: set[str], words: set[str], start: int) -> None:
        """Mark values from number `start` on that the anchor shows; the share of their words in it."""
        visible, overlap = self.values["visible"], self.values["overlap"]
        for value in range(start, self.values.size):
            form = self.forms[value]
            if form in known or (form in texts_folded and _bounded(texts_folded, form)):
                visible[value] = True
            parts = self.parts[value]
            if parts:
                overlap[value] = sum(p in words for p in parts) / len(parts)
        self.values["changed"][start:] = True


def _name_words(name: str) -> list[str]:
    return [p for p in re.split(r"[\W_]+", name) if p]


def _symbols(text: str) -> float:
    """Share of characters that only code and markup use much."""
    return sum(map(text.count, _SYMBOLS)) / len(text)


def _bounded(text: str, form: str) -> bool:
    """Does `form` stand in `text` as whole words?"""
    at = text.find(form)
    while at >= 0:
        before = text[at - 1] if at else " "
        after = text[at + len(form)] if at + len(form) < len(text) else " "
        if not (before.isalnum() and form[0].isalnum()) and not (after.isalnum() and form[-1].isalnum()):
            return True
        at = text.find(form, at + 1)
    return False


def mentions(text: str) -> set[str]:
    """Forms of the values that a text names."""
    return {c.form for c in find_mentions(text)}
