"""The one search: records that fit a query by words or similarity, of a session or a wider scope."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, takewhile
from typing import Any

import numpy as np

from memory_bank.bank.listing import Outline, outlines, without_insight
from memory_bank.bank.stores import Call, Place, WiderScope
from memory_bank.bank.terms import (
    Postings,
    bm25,
    heads_of,
    is_said,
    speaks,
    terms_of,
    terms_of_query,
    terms_of_texts,
)
from memory_bank.errors import EmbeddingError
from memory_bank.ports import Scope
from memory_bank.records import Brief, Hit, InteractionRecord
from memory_bank.selection.effects import file_access
from memory_bank.transcript.jsontext import compact, inner_json, leaves
from memory_bank.transcript.messages import readable_output

_MAX_EXACT_CHARS = 200  # longer texts are not searched for exactly
_MAX_WANTED = 20  # identifiers of a query that are searched for exactly
_MAX_EXAMINED = 400  # records without an insight that are looked at
_COMPARED = 200  # records of a wider scope whose arguments are compared
_LATER = 200  # calls that name the files of results
_COMPARED_CHARS = 400  # of their arguments: what a long text mentions is not what the call is of
_MAX_READ = 2 * 2**20  # bytes of an output in which a place is looked for
# Chosen on the even parts of ``benchmarks/search.py``.
_ASKED = 6  # terms of a question, at most
_LEADING = 12  # records that are compared for the latest of what a question asks for
_NEAR = 0.3  # by how much worse the latest may fit than an older one
_TOLD_CHARS = 300  # of a message that tells a change: a long answer has words of change in any case
_STATED_CHARS = 24_000  # of all outputs whose words are compared, and of what their calls were given

# What an agent says before it acts, a heading, or a question about the past: none asks what is so now.
_NOTE = re.compile(r"\A#+ |\b(?:I|I'm|I'll|we|let me|let'?s)\b|[.:!]\s*\Z", re.I)
_PAST = re.compile(
    r"\b(?:before|earlier|formerly|history|initial(?:ly)?|original(?:ly)?|previous(?:ly)?|used to)\b", re.I
)
# Capitalised words that do not begin a sentence, as of a person or a place; several in a row are one name.
_NAMES = re.compile(r"""(?:(?<=[^\W_] )|(?<=["'(]))[A-ZÀ-Þ]\w+(?: [A-ZÀ-Þ]\w+)*(?![\w-])""")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
# A figure with the sign before it, or the unit after it.
_AMOUNT = re.compile(
    r"(?<![\w-])([$€£¥]?)(\d[\d.,:]*+)(?: ?(?!(?:and|at|for|in|is|of|on|or|to)\b)([^\W\d_]+))?"
)
# English words by which a message tells a change.
_CHANGE = re.compile(
    r"\b(?:actually|any ?more|as of|became|becomes?|cancel(?:l?ed|s)?|chang(?:ed?|es|ing)|correct(?:ed|ion)|cuts?|"
    r"from \w+ on|g(?:ave|iven?|ives) up|hand(?:ed|s|ing)?(?: \S+){0,2} (?:over|to)|increas(?:ed?|es)|instead|"
    r"lower(?:ed|s)|mov(?:ed|es|ing)|no longer|postponed?|rais(?:ed|es?|ing)|rather|reduc(?:ed?|es)|renam(?:ed?|es)|"
    r"replac(?:ed?|es|ing)|switch(?:ed|es|ing)?|tak(?:es?|ing) over|took over|updat(?:ed?|es)|wrong)\b",
    re.I,
)

# Identifiers in a text, and the place where an output contains a text, however it is written there.
_STRUCTURE = re.compile(r"[\d_@/\\#]|[a-z][A-Z]|\w[-.:]\w")
_FIGURE = re.compile(r"[-+\d.,:%]+\Z")  # a number, a time of day
_CHUNK = re.compile(r"[^\s\"'`<>()\[\]{},;|=*]{3,300}")
_ESCAPED = re.compile(r"(?<!\\)\\+[nrtbf\"'/]")
_EDGES = ".,:;!?&-+$%\\"
_ESCAPE = re.compile(r"(?<!\\)\\+(?:u([0-9a-fA-F]{4})|([nrtbf])|([\"'/]))")
_BACKSLASHES = re.compile(r"\\{2,}")
_BLANKS = re.compile(r"\s+")
_SURROGATE = re.compile("[\ud800-\udfff]")
# ASCII letters and digits apart from all others: CJK text has no blank between an order number and its words.
_RUN = re.compile(r"[a-z0-9]+|[^\W_a-z0-9]+")
_WHOLE_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?\Z")
_NO_WORD_GAPS = "\u2e80"  # from here on scripts write without blanks
_LONGEST_JSON = 300_000  # characters of an output in which a path is looked for


@dataclass(frozen=True, slots=True, repr=False)
class SearchMatch(Brief):
    """A record that was found.

    ``why`` it was: see ``Hit``; also "holds", for an output that contains the text ``holds`` exactly, at ``place``: a
    JSON path, or ``line 7``. ``score`` is how well it fits, 0 to 1. ``session_id`` is None for a record of the
    searched session, else the id of the session that has it. ``newer`` is the trace_id of the latest record of the
    same call, which returned something else, or, where it ``is_corrected``, of the latest message that tells a change
    of what the query asks for. ``since``: what a later call did with the file that another session read. ``record``
    is None where the output is over 2 MiB.
    """

    outline: Outline
    score: float
    session_id: str | None
    why: str
    holds: str | None = None
    place: str = ""
    newer: str | None = None
    is_corrected: bool = False
    since: str = ""
    record: InteractionRecord | None = None

    @property
    def reason(self) -> str:
        """Why it was found, and whether it is superseded, in words."""
        return self.reason_with({})

    def reason_with(self, names: Mapping[str, str]) -> str:
        """Why this was found, in words. A record that supersedes it is called as ``names`` says, else by trace_id."""
        reasons = {"neighbour": "near a record that fits", "similarity": "similar in meaning"}
        why = reasons.get(self.why, "has words of the query")
        if self.holds is not None:
            why = f'holds "{normal(self.holds)}"' + (f" at {self.place}" if self.place else "")
        later = "a later message" if self.is_corrected else "a later result of the same call"
        newer = f"; superseded by {names.get(self.newer, self.newer)}, {later}" if self.newer else ""
        return why + newer + (f"; the file was {self.since}" if self.since else "")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Matches, best first; ``trouble`` is the embedder's error, where only words were compared."""

    matches: list[SearchMatch]
    trouble: EmbeddingError | None = None


def search_session(
    state: Any, query: str, top_k: int, *, scope: Scope | None = None, by_agent: bool = True
) -> SearchResult:
    """Search a session (a ``MemoryBankState``), or a ``scope``, by default the state's, for what fits a query.

    Best first, but beyond the session those whose call has the query, or a path or an id of it, before all others;
    then records whose output contains the whole query, then, if it is a question, those that contain an identifier of
    it; before an output the later one of the same call, and of a question what says later that it is otherwise.
    ``by_agent``: the records of the latest step, which an agent has in view, come last. Of records without an insight
    the session's newest 400 are found, by words. Answers of our own tools are never found: they quote other records.
    Raises EmbedderMismatchError, StorageError.
    """
    if not (isinstance(query, str) and isinstance(top_k, int)):
        raise TypeError("a search takes words, a name or an id as str, and top_k as int")
    scope = scope or state.scope
    tokens = dict.fromkeys(identifiers_in(query))
    wanted = [w for w in (query, *islice(tokens, _MAX_WANTED)) if len(w) <= _MAX_EXACT_CHARS]
    forms = {normal(w): w for w in reversed(wanted)}
    step, steps = state.step_count, reversed(state.steps.items())
    last = {t for t, _ in takewhile(lambda item: item[1] == step, steps)} if by_agent else set()
    is_short = len(terms_of_query(query)) <= _ASKED and not _PAST.search(query)
    asks = is_short and (query.rstrip().endswith("?") or not _NOTE.search(query))
    trouble, hits = None, list[Hit]()
    most = max(top_k, _LEADING) if asks else top_k
    if (store := state.insight_store) is not None:
        limit = max(most, _COMPARED if scope != "session" else 0) + len(last)
        ranked = partial(store.rank, query, limit=limit, scope=scope)
        try:
            hits = ranked(only_alike=True)
        except EmbeddingError as e:
            trouble, hits = e, ranked(only_words=True)
    if store is None or store.size() != state.fact_store.size():
        hits = sorted([*hits, *_without_insight(state, query)], key=lambda hit: -hit.score)
    hits = sorted((h for h in hits if h.why), key=lambda h: h.session_id is None and h.trace_id in last)
    hits, first, calls = _newest_first(hits), list[Place](), dict[Place, Call]()
    if scope != "session":
        at = {(h.session_id or state.session_id, h.trace_id): h for h in hits}
        asked = [(s, t) for s, t in at if s != state.session_id or t not in last]
        calls = WiderScope(state.database, state.session_id, scope).calls(asked)
        first = _same_call_first(calls, forms)
        hits = [at[place] for place in dict.fromkeys([*first, *at])]
    matches = [_with_place(match, forms) for match in _loaded(state, scope, hits[:most])]
    whole_query = wanted[0] if wanted and wanted[0] == query else None
    if is_short:
        matches = _latest_first(matches, query, asks)
        matches.sort(key=lambda m: m.session_id is None and m.outline.trace_id in last)
    if asks:
        latest = {m.newer for m in matches if m.holds is not None}  # before what they supersede
        matches.sort(key=lambda m: m.holds is None and m.outline.trace_id not in latest)
    matches.sort(key=lambda m: whole_query is None or m.holds != whole_query)
    ranks = {place: n for n, place in enumerate(first)}
    matches.sort(key=lambda m: ranks.get((m.outline.session_id, m.outline.trace_id), len(first)))
    matches = matches[:top_k]
    if scope != "session" and store is not None:
        matches = _with_file_changes(state, scope, matches, calls)
    return SearchResult(matches, trouble)


def _without_insight(state: Any, query: str) -> list[Hit]:
    """The session's records that have no insight yet, or will have none, as far as they have words of the query."""
    bare = list(without_insight(state.database, state.session_id))[-_MAX_EXAMINED:]
    if not bare:
        return []
    stored = [terms_of("", record) for record in state.fact_store.get_many(bare)]
    lengths = heads_of(stored)["length"].astype(np.float64)
    scores, most = bm25(terms_of_query(query), Postings.of(stored), lengths)
    newest_first = reversed([*zip(bare, scores.tolist(), strict=True)])
    return [Hit(trace_id, score / most, None, "words") for trace_id, score in newest_first if score > 0]


def _same_call_first(calls: Mapping[Place, Call], forms: Collection[str]) -> list[Place]:
    """The calls whose arguments have texts of a query: first those with most, of these whole files, then the newest.

    Of a path its last four names count, and two are enough: each session may have the project in another folder.
    """
    ends = [(runs(each[0][1].rpartition("/")[2]), each) for each in map(_ends, forms)]
    ranks: dict[Place, tuple[int, int, int]] = {}
    for place, (seq, tool, arguments) in calls.items():
        folded = arguments[:_COMPARED_CHARS].casefold()
        near = [each for name, each in ends if not folded.isascii() or all(run in folded for run in name)]
        text = normal(folded) if near else ""
        if most := sum(next((n for n, end in each if find(text, end) >= 0), 0) for each in near):
            file = file_access(tool, arguments)
            part = 2 if file is None or file.access != "read" else int(file.part != "")
            ranks[place] = -most, part, -seq
    return sorted(ranks, key=ranks.__getitem__)


def _ends(text: str) -> list[tuple[int, str]]:
    """How much each end of a text counts, and the end: a path's last four names, three, two; any other as a whole."""
    names = [] if " " in text else text.strip("/").split("/")
    return [(n, "/".join(names[-n:])) for n in range(min(4, len(names)), 1, -1)] or [(1, text)]


def _with_file_changes(
    state: Any, scope: Scope, matches: Sequence[SearchMatch], calls: Mapping[Place, Call]
) -> list[SearchMatch]:
    """The matches; those of other sessions that read a file with what later calls in the scope did with it."""
    updated, read = list(matches), dict[int, str]()
    for n, m in enumerate(matches):
        file = m.session_id and m.record and file_access(m.record.tool_name, compact(m.record.raw_input))
        if file and file.access == "read":
            read[n] = _ends(normal(file.path))[0][1]
    if not read:
        return updated
    names = {end.rpartition("/")[2] for end in read.values()}
    hits = state.insight_store.rank(" ".join(names), limit=_LATER, scope=scope, only_words=True)
    places = [(h.session_id or state.session_id, h.trace_id) for h in hits if h.why == "words"]
    others = WiderScope(state.database, state.session_id, scope).calls([p for p in places if p not in calls])
    oldest = min(matches[n].outline.seq for n in read)
    later: dict[str, list[tuple[bool, int, str]]] = {}
    for (_, trace_id), (seq, tool, arguments) in {**calls, **others}.items():
        is_plain = arguments.isascii() and "\\" not in arguments
        if seq <= oldest or (is_plain and not any(name in arguments.casefold() for name in names)):
            continue
        if (file := file_access(tool, arguments)) is not None:
            end = _ends(normal(file.path))[0][1]
            later.setdefault(end, []).append((file.access != "read", seq, trace_id))
    for n, end in read.items():
        if since := [call for call in later.get(end, ()) if call[1] > matches[n].outline.seq]:
            is_edit, _, trace_id = max(since)
            updated[n] = replace(updated[n], since=f"{'changed' if is_edit else 'read again'} by {trace_id}")
        elif len(hits) < _LATER:  # else not all calls were compared
            updated[n] = replace(updated[n], since="not seen since")
    return updated


def _latest_first(matches: Sequence[SearchMatch], query: str, asks: bool) -> list[SearchMatch]:
    """The matches of a short query, before each the later ones of the same thing that fit nearly as well.

    The thing is what the query names, else the rarest of its terms that the older has. Unless the query ``asks`` what
    is so now, only outputs of one tool are of the same thing. Of what is said in sentences, the later is first only
    where it is a message that tells a change, but then however little it fits; it supersedes an older one only if it
    has another value.
    """
    most = _STATED_CHARS // max(1, len(matches))
    names = " ".join((*_NAMES.findall(query), *identifiers_in(query)))
    texts, statements, tells = [query, names], list[bool](), list[bool]()
    for record in (m.record for m in matches):
        output = "" if record is None else readable_output(record)[1]
        statements.append(record is not None and is_said(record.raw_input, output))
        arguments = "" if record is None or statements[-1] else compact(record.raw_input)
        texts.append(f"{arguments[:most]}\n{output[:most]}")
        is_message = asks and record is not None and speaks(record.raw_input) and len(output) <= _TOLD_CHARS
        tells.append(is_message and texts[-1][-1] != "?" and _CHANGE.search(texts[-1]) is not None)
    asked, named, *words = terms_of_texts(texts)
    often = Counter(term for each in words for term in each & asked)
    ordered, latest = list[int](), dict[int, int]()
    for n, new in enumerate(matches):
        at = n
        for o, old in enumerate(matches):
            shared = words[o] & words[n]
            rarest = min((often[term] for term in words[o] & asked), default=0)
            is_same = named <= shared if named else any(often[term] == rarest for term in shared & asked)
            is_same = is_same and (asks or new.outline.tool_name == old.outline.tool_name)
            if not is_same or old.session_id != new.session_id or old.outline.seq >= new.outline.seq:
                continue
            rest = (asked - named) & words[o]
            is_asked = rest >= (asked - named) & words[n] and bool(rest)
            if tells[n] and _is_replaced(texts[o + 2], texts[n + 2], names.split(), is_asked):
                latest[o] = max(latest.get(o, n), n, key=lambda m: matches[m].outline.seq)
            fits = new.score >= (1 - _NEAR) * old.score and not (statements[o] and statements[n])
            if o < n and (tells[n] or fits):
                at = min(at, ordered.index(o))
        ordered.insert(at, n)
    corrected = {o: matches[n].outline.trace_id for o, n in latest.items() if matches[o].newer is None}
    return [
        replace(matches[n], newer=corrected.get(n, matches[n].newer), is_corrected=n in corrected)
        for n in ordered
    ]


def _is_replaced(old: str, new: str, subject: Collection[str], is_asked: bool) -> bool:
    """Return whether a later text has another figure of a unit than an older one, or another name where that has one.

    Of the later text, the sentences count that tell a change and name the ``subject``, if there is one.
    ``is_asked``: the older text has words of the question beside the ``subject``, and all that the later one has of
    them; else the later one has to repeat a name of it.
    """
    changed = (s for s in _SENTENCE_END.split(new) if _CHANGE.search(s))
    new = " ".join(s for s in changed if not subject or any(name in s for name in subject))
    units = ({(m[3] or m[1]).lower(): m[2].rstrip(".,:") for m in _AMOUNT.finditer(t)} for t in (old, new))
    names = (
        {w for run in map(str.split, _NAMES.findall(t)) if {*run}.isdisjoint(subject) for w in run}
        for t in (old, new)
    )
    (was, now), (named, renamed) = units, names
    differ = is_asked and any(was[unit] != now[unit] for unit in was.keys() & now.keys() if unit)
    return differ or bool(named and renamed - named and (is_asked or named & renamed))


def _newest_first(hits: Sequence[Hit]) -> list[Hit]:
    """The hits, before each its session's latest record of the same call, where that returned something else."""
    by_place = {(hit.session_id, hit.trace_id): hit for hit in hits}
    ordered: dict[tuple[str | None, str], Hit] = {}
    for hit in hits:
        if hit.newer is not None and hit.newer[0] == hit.session_id:
            latest = Hit(hit.newer[1], hit.score, hit.newer[0], hit.why)
            ordered.setdefault(hit.newer, by_place.get(hit.newer, latest))
        ordered.setdefault((hit.session_id, hit.trace_id), hit)
    return list(ordered.values())


def _loaded(state: Any, scope: Scope, hits: Sequence[Hit]) -> list[SearchMatch]:
    """The hits with their records; those deleted meanwhile are left out."""
    places = [(hit.session_id or state.session_id, hit.trace_id) for hit in hits]
    there = {
        (session_id, outline.trace_id): outline
        for session_id in dict.fromkeys(session_id for session_id, _ in places)
        for outline in outlines(state.database, session_id, [t for s, t in places if s == session_id])
        if not outline.is_own_answer
    }
    read = [place for place, outline in there.items() if outline.output_bytes <= _MAX_READ]
    entries = WiderScope(state.database, state.session_id, scope).entries(read)
    records = {at: record for at, (record, _) in entries.items()}
    return [
        SearchMatch(
            there[at], h.score, h.session_id, h.why, newer=h.newer and h.newer[1], record=records.get(at)
        )
        for h, at in zip(hits, places, strict=True)
        if at in there
    ]


def _with_place(match: SearchMatch, forms: dict[str, str]) -> SearchMatch:
    """A match with the text that its output contains exactly: the query, or the first of its identifiers."""
    if (record := match.record) is None:
        return match
    output = compact(record.raw_output) if record.output_text is None else record.output_text
    folded, plain = output.casefold(), None
    for form, text in reversed(forms.items()):
        if form.isascii() and not all(run in folded for run in runs(form)):
            continue
        plain = plain or normal(output)
        if find(plain, form) >= 0:
            return replace(match, why="holds", holds=text, place=place_of(output, form))
    return match


# identifiers and places


def is_identifier(token: str) -> bool:
    """Return whether a text without blanks is an id, a path, an address or a program's name; no word, no figure."""
    if _FIGURE.match(token):  # a number of an order has five digits or more
        return len(token) > 4 and token.isdigit() and token.strip("0") != ""
    return _STRUCTURE.search(token) is not None and any(map(str.isalnum, token))


def identifiers_in(text: str) -> Iterator[str]:
    """The identifiers in a text in their order, and the parts of those with ``:`` or ``&``."""
    for chunk in _CHUNK.findall(_ESCAPED.sub(" ", text)):
        token = chunk.strip(_EDGES)
        joined = (":" in token or "&" in token) and "/" not in token
        parts = re.split(r"[:&]+", token) if joined else []
        yield from (part for part in (token, *parts) if len(part) >= 3 and is_identifier(part))


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
    return _RUN.findall(text)


def find(text: str, value: str) -> int:
    """The first position of a value in a text at token boundaries, both in normal form; -1 without one."""
    if not value:
        return -1
    is_number = bool(_WHOLE_NUMBER.match(value))
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
    """Return whether the character at a position continues the token that ends with ``edge``."""
    if not 0 <= at < len(text) or not edge.isalnum() or edge >= _NO_WORD_GAPS:
        return False
    other = text[at]
    return other == "_" or (other.isalnum() and other < _NO_WORD_GAPS)


def place_of(text: str, wanted: str) -> str:
    """The place of a value (in normal form) in a text: a JSON path, ``line N``, or ""."""
    value = inner_json(text) if len(text) <= _LONGEST_JSON else None
    for leaf in leaves(value, opened=inner_json) if value is not None else ():
        inner = leaf.value if isinstance(leaf.value, str) else compact(leaf.value)
        if find(normal(inner), wanted) >= 0:
            return leaf.path
    words = r"\s+".join(map(re.escape, wanted.split(" "))) if wanted.isascii() else ""
    match = re.search(words, text, re.I) if words else None
    return "" if match is None else f"line {text.count(chr(10), 0, match.start()) + 1}"
