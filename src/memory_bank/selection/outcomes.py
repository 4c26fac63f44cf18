"""The outcome of a call in a few words: how it failed, its status and ids, or the line of a text that tells."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

from memory_bank.selection.cutting import MAX_TEXT
from memory_bank.selection.effects import (
    FAILED_LINE,
    PROBLEM,
    RUN_FAILED,
    STATUS_KEYS,
    is_cancelled,
    is_failure,
)
from memory_bank.selection.values import KIND, kind_of
from memory_bank.transcript.framing import run_of
from memory_bank.transcript.jsontext import Leaf, inner_json, leaves
from memory_bank.transcript.quoting import as_terminal, one_line

_LEAST_WORD = 24  # characters of a line before its first cut
_READ_CHARS = 400  # characters of a value that are read
_SHORT_TEXT = 48  # characters of a text that is the outcome as a whole
_LINE_CHARS = 72  # of the line that tells
_OUTCOME_LEAVES = 60  # of a JSON object, shallow ones first, that are searched for telling values
_TELLING_CHARS = 84  # of the telling values of a JSON object, of the names of a list's items
_ERROR_CHARS = 84
_SHORT_PROBLEM = 30  # characters of a line about a failure to which the next one is added
_SUMMED_CHARS = 110  # of a summary of tests with the first that failed
_ENDS = 4_000  # characters of a text, at its beginning and at its end, whose lines are read
_ERROR_KEYS = ("error", "message", "detail", "text", "errors", "stderr", "body", "reason")
_LABEL = re.compile(r"\A[^\w\"'`~/.(<\[]*(?:<[^<>]{1,40}>\s*)?(?:error:?\s+)?", re.I)
_SCRIPT = re.compile(r"\AScript failed\n(?:Wall time[^\n]*\n)?(?:Output:\s+)?(?:Script error:\n)?")
_RUNNING = re.compile(
    r"(?:[^\n]{0,80}\n){0,3}((?:process|script|command)(?: is)?(?: still)? running with (?:session|cell) ID \S+)",
    re.I,
)
_TAG = re.compile(r"</?[a-z_]{1,40}>", re.I)
_CONFIRMED = re.compile(
    r"(?:the )?(?:file|directory|folder|todos?|plan|notebook|cell)\b[^\n]{0,300}?\b(?:has been|have been|was|were)?"
    r"\s*(?:successfully )?(updated|created|modified|written|saved|edited|deleted|removed|moved)\b(?! by)",
    re.I,
)
_SNIPPET = re.compile(r"^[ \t]{0,8}(\d{1,7})(?:\t|→)", re.M)
_WORD_END = re.compile(r"[\s,;)\]}]")
_LABELLED = re.compile(
    r"^[ \t]*+(?:[-*•] )?[|\"'*]{0,3}[ \t]{0,8}([A-Za-z][\w .\[\]/-]{0,60}?)[\"'*]{0,2}[ \t]{0,40}"
    r"(?:[:=]\**[ \t]{1,40}|:=|\|[ \t]{0,40})\"?(\S[^|\n]{0,80}?)[\",]{0,2}[ \t]{0,40}\|?\r?$",
    re.M,
)
_DIGITS = re.compile(r"\d+")
_NUMBER = re.compile(r"(?<!\" )[1-9]\d*")  # not a status of HTTP
_LABELLED_CHARS = 8_000  # of a text that are searched for labels
_ID_KEY = re.compile(r"(?:^|[_\W])(?:id|number|code|key|ref)$|id$", re.I)
_IDS = {KIND["code"], KIND["hex"], KIND["email"]}
_ID_CHARS = 44  # of an identifier: a UUID has 36
_LEAST_ID = 6  # characters of a value that is an identifier by its spelling
_CODE = re.compile(r"\w[(\[]")  # a call, an index
_NO_ID = re.compile(r"\s|\A\d{4}-\d\d-\d\d|\A[\d.,]+[A-Za-z]{1,3}\Z")  # several words, a time, a measure
_STATE = re.compile(r"(?:^|[_\W])(?:status|state|result|message)$|(?<=[a-z])(?:Status|State|Result)$", re.I)
_TELLING = re.compile(
    r"(?:^|[_\W])(?:number|path|name|title|total\w{0,40})$"
    r"|(?:url|count|total|results?|rows|cells|range|affected)$|^total|id$",
    re.I,
)
_NAMES = ("name", "title", "subject", "label", "path", "id", "key", "url", "text")

# Lines that sum up, the most telling first.
_SUMS = (
    re.compile(
        r"\b\d+ (?:passed|failed|passing|failing|failures?|examples?|problems?|errors?|issues?)\b(?!\()"
        r"|\d%? tests? (?:passed|failed)\b|\btests run:|\bran \d+ tests?\b|^failed \(|failures?[:=] ?\d|errors?=\d"
        r"|^--- fail|all checks passed|no issues found|^failed! +-|^passed! +-|conflict \("
        r"|\*\*\* .{0,160}?\berror \d",
        re.I,
    ),
    re.compile(
        r"\b\d[\d,]{0,20} (?:\w+ ){0,2}?(?:changed|found|matched|matche?s|rows?|results?|records?|items?"
        r"|packages?(?! are)|file\(s\)|affected|copied|moved|deleted|created|updated|inserted|imported|reformatted"
        r"|written|saved|sent)\b|\bwarning:|\bbuild (?:success\w*|succeeded|failed|failure)\b"
        r"|\b(?:found(?! 0 vuln)|total|added|removed|updated|inserted|deleted|created|imported|processed|saved"
        r"|returned)\b[^\n]{0,40}?\d|^(?:update|insert|delete|select|copy) \d|\bno \w+(?: \w+)? found\b"
        r"|nothing to commit|\b[\w./-]{1,80} -> [\w./-]{1,80}$|^\[[^\]\n]+ [0-9a-f]{7,}\]",
        re.I,
    ),
    re.compile(
        r"success|\b(?:saved|written|wrote|completed?|finished|built|done|installed|started|stopped|deployed"
        r"|passed|ready|up[- ]to[- ]date|switched|created|updated|deleted|removed|page url)\b",
        re.I,
    ),
)
# Logs and runs: what stands before what a line says, a line with a time or a level, one that says what failed
_BEFORE = re.compile(
    r"(?:[\w.-]{1,40} +\| |#\d+ (?:[\d.]+ )?)?"
    r"(?:[\[(]?(?:\d{4}[-/]\d\d[-/]\d\d[T ])?\d\d:\d\d:\d\d[\w.,:+-]*[\])]?(?: |\Z))?(?:##\[)?"
)
_ENTRY = re.compile(
    r".{0,40}?(?:\d\d:\d\d:\d\d|\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|FATAL|CRITICAL|SEVERE)\b|\blevel=)"
)
_FAILED_ENTRY = re.compile(
    r"(?:(?!INFO|DEBUG|TRACE|WARN)[^\n]){0,60}?\b(?:ERROR|FATAL|CRITICAL|SEVERE|PANIC|ALERT)(?=[\s\]|:>)])"
    r"|.{0,80}?\blevel=\"?(?:error|fatal|panic|critical)\b|.{0,200}?\" 5\d\d |E {2,}\S|Traceback \(most|Caused by: "
    r"|thread '.{0,200}?' panicked|assertion .{0,80}? failed\Z|(?:\S+:\d+: )?[\w.]*(?:Error|Exception)(?::|\Z)"
)
_HINT = re.compile(  # in a line of lower-case letters: it is worth reading whether it tells of a failure or a sum
    "fail|error|exception|fatal|panic|cannot|could not|unable|denied|not found|no such|refused|reject|not recog"
    '|unrecog|timed out|conflict|non-zero|exit|traceback|caused by|critical|severe|alert|e   |" 5|killed|aborted'
    "|terminated|core dumped|bus error|segmentation|passed|passing|problem|issue|examples|tests|[×✗✕❌●]"
)
_MOST_HINTS = 1_000  # lines with a hint that are read, which differ in more than their digits
_NEAR_END, _NEAR_BEGIN = 30, 4  # lines of a run, of which one says how it went
_SAMPLE = 200  # lines by which a log is known
_MOST_SUMS, _TOLD_CHARS = 8, 400
_BLOCK_LINES, _FIRST, _LAST = 40, 8, 5  # of a failure that are read; that are shown, of a traceback the last
_WORDLESS = re.compile(  # and the command of a runner, its signs and times
    r"[\W_]*|(?:\[[^\]]{1,60}\] )?\$ .*|=+ [A-Z ]{1,40} =+"
    r"|(?i:return code|execution time|timeout limit): [\d.]+[a-z ]*"
)
_WENT_WELL = re.compile(r"\W*(?:success|ok|status)\W+(?:true|ok|success)\W*", re.I)
_DIFF = re.compile(r"^(?:diff --git |Index: |--- \S|@@ -\d)", re.M)
_DIFF_FILE = re.compile(r"^\+\+\+ (?:b/)?(\S+)", re.M)
_EXCERPT = re.compile(r"(?:\(|\A)[\d,]+ lines\)?\Z|\A[\d,]+ items?\b")
_HTTP = re.compile(r"HTTP/[\d.]{1,4} ([45]\d\d)\b")
_SAID = re.compile(r"the user (?:said|provided[^:\n]{0,60}|wrote|answered):\s*(\S[^\n]*)", re.I)


def clip(text: str, chars: int) -> str:
    """The first ``chars`` characters of a line, cut after a word; ``…`` marks the cut."""
    if len(text) <= chars:
        return text
    cut = max((m.start() for m in _WORD_END.finditer(text, _LEAST_WORD, chars + 1)), default=0)
    return text[: cut or chars].rstrip() + "…"


def outcome(
    output: str, seen: Collection[str] = (), *, failed: bool | None = None, ends: bool = False
) -> tuple[str, list[str]]:
    """The outcome in a few words ("" for nothing, ``error: …``), and the values in it that are not among ``seen``.

    ``failed``: whether the call failed; None: as the output alone reports. ``ends``: where no line sums it up, the
    last one tells.
    """
    content = run_of(output)
    text, value = as_terminal(content.text).strip(), content.value
    if is_failure(output) if failed is None else failed:
        if is_cancelled(text):
            verb = "rejected" if "rejected" in text[:_READ_CHARS] else "cancelled"
            reply = _SAID.search(text)
            return f"{verb} by the user{f': {clip(one_line(reply[1]), _ERROR_CHARS)}' if reply else ''}", []
        words = _error_text(text, value, content.code) or f"exit code {content.code}"
        status = _HTTP.match(output)
        return f"error: {status[1]} {words}" if status else f"error: {words}", []
    if not text:
        return "", []
    if running := _RUNNING.match(output):
        printed = lines_at_the_ends(text.partition("Output:\n")[2])[-1:]
        return clip("; ".join([running[1], *printed]), _ERROR_CHARS), []
    if value is None or _CONFIRMED.match(text[:_READ_CHARS]):
        shown, values = _outcome_of_text(output, text, seen, ends)
        return f'"{shown}"' if shown.startswith("error: ") else shown, values
    if isinstance(value, list):
        listed = _listed(value, seen)
        if listed != "1 item" or not isinstance(value[0], dict):
            return listed, []
        value = value[0]
    members: list[str] = []
    pairs, others = [], []
    for leaf in islice(leaves(value, opened=inner_json, breadth_first=True), _OUTCOME_LEAVES):
        if leaf.value is None:
            continue
        pair = leaf.key, "false" if leaf.value is False else one_line(str(leaf.value)[:_READ_CHARS])
        if leaf.depth == 1:
            members.append(pair[1])
        # of the items of a list ids alone are shown: the count of the first one would be taken for the list's
        if is_id(*pair) or not _in_list(leaf):
            pairs.append(pair)
            others += [] if leaf.value is True or leaf.value == "" else [pair]
    shown, values = _telling(pairs, seen, members)
    if shown:
        return shown, values
    if isinstance(value, dict) and (counts := [(k, v) for k, v in value.items() if isinstance(v, list)]):
        return ", ".join(f"{clip(one_line(k), 24)}: {_items(v)}" for k, v in counts[:3]), []
    shown, values = _parts([(1, k, v) for k, v in others if v not in seen])
    nested = (
        f"{clip(one_line(k), 24)}: {_items(v)}"
        for k, v in value.items()
        if isinstance(v, dict) and len(v) > 1
    )
    return shown or next(nested, "ok"), values


def _listed(items: Sequence[object], seen: Collection[str]) -> str:
    """How many items a list has, and what the first ones are called, as there is room."""
    names: list[str] = []
    room = _TELLING_CHARS
    for item in items[:8]:
        if isinstance(item, dict):
            keys = (k for name in _NAMES for k in item if str(k).casefold().rpartition("_")[2] == name)
            item = next(
                (item[k] for k in keys if isinstance(item[k], (str, int)) and item[k] not in seen), ""
            )
        elif isinstance(item, list):
            item = ", ".join(str(cell) for cell in item[:6] if isinstance(cell, (str, int, float)))
        name = clip(one_line(str(item)[:_READ_CHARS]), 40) if item is not None else ""
        if not name or name in names or len(name) + 2 > room:
            break
        names.append(name)
        room -= len(name) + 2
    tail = "; …" * (len(names) < len(items))
    return f"{_items(items)}: {'; '.join(names)}{tail}" if names else _items(items)


def _items(items: Collection[object]) -> str:
    return f"{len(items):,} item{'s' * (len(items) != 1)}"


def _outcome_of_text(output: str, text: str, seen: Collection[str], ends: bool) -> tuple[str, list[str]]:
    line = one_line(text[:_READ_CHARS])
    if len(line) <= _SHORT_TEXT and len(text) <= _READ_CHARS:
        return line, []
    if confirmed := _CONFIRMED.match(line):
        numbers = _SNIPPET.findall(output)
        where = f", lines {numbers[0]} to {numbers[-1]}" if numbers else ""
        return f"{confirmed[1].casefold()}{where}", []
    labelled = _labelled(text[:_LABELLED_CHARS])
    shown, values = _telling(labelled, seen, [text for _, text in labelled])
    if tells_id(shown):
        return shown, values
    count = text.count("\n") + 1
    if count == 1:
        end = _LINE_CHARS // 2
        if len(line) > _LINE_CHARS:
            line = f"{line[: _LINE_CHARS - end - 1].rstrip()}…{line[-end:].lstrip()}"
        return line, []
    summary = _diff(text) or telling_line(text, ends)
    return f"{clip(summary, _LINE_CHARS)} ({count:,} lines)" if summary else f"{count:,} lines", []


def lines_at_the_ends(text: str) -> list[str]:
    """The lines with a word at the beginning and at the end of a text, each on one line."""
    if len(text) > 2 * _ENDS:
        text = f"{text[:_ENDS]}\n{text[-_ENDS:].partition(chr(10))[2]}"
    lines = (one_line(line[:_READ_CHARS]) for line in text.split("\n"))
    return [line for line in lines if not _WORDLESS.fullmatch(line)]


def telling_line(text: str, ends: bool) -> str:
    """The line of a text that sums it up, the latest of the most telling; else its first or, ``ends``, its last."""
    lines = [line for line in lines_at_the_ends(text) if not _WENT_WELL.fullmatch(line)]
    near = lines[:4] + lines[max(4, len(lines) - 12) :]
    for pattern in _SUMS if ends or len(lines) <= 60 else ():
        if line := next((line for line in reversed(near) if len(line) <= 160 and pattern.search(line)), ""):
            return line
    return (lines[-1] if ends else lines[0]) if lines else ""


Span = tuple[int, int]


class Report(NamedTuple):
    """Where the lines of a log or a run stand that sum it up, that say what failed, and that tell more of it."""

    sums: Sequence[Span] = ()
    failures: Sequence[Span] = ()
    details: Sequence[Span] = ()


def report_of(text: str) -> Report:
    """The telling lines of a log, of the output of tests or of a compiler, known by its form; none of other texts.

    Of lines that differ in their digits alone the first failure and the last sum count. Linear; of a long text the
    end is read.
    """
    skipped = max(0, len(text) - MAX_TEXT)
    lines = text[skipped:].split("\n")
    first, last = dict[str, int](), dict[str, int]()  # by line without its time and digits
    for n, line in enumerate(lines):
        if _HINT.search(line[:_TOLD_CHARS].lower()):
            first.setdefault(key := _key(line), n)
            last[key] = n
    hints = [*first]
    del hints[_MOST_HINTS // 2 : -_MOST_HINTS // 2]
    failed = {k for k in hints if FAILED_LINE.match(k) or RUN_FAILED.search(k) or _FAILED_ENTRY.match(k)}
    sums = sorted(last[k] for k in hints if _SUMS[0].search(k) and len(lines[last[k]]) <= _TOLD_CHARS)
    unindented = [line for line in lines if line[:1].strip()]
    unindented = unindented[:: 1 + len(unindented) // _SAMPLE]
    is_log = 2 * sum(_ENTRY.match(line) is not None for line in unindented) > len(unindented)
    ends = {*range(_NEAR_BEGIN), *range(len(lines) - _NEAR_END, len(lines))}
    if not (is_log or (failed and sums)) and ends.isdisjoint([*sums, *(last[key] for key in failed)]):
        return Report()
    at = [first[key] for key in hints if key in failed]
    starts = [*accumulate((len(line) + 1 for line in lines), initial=skipped)]
    blocks = sorted({line for n in at for line in _block(lines, n, failed)}.difference(at))
    return Report(*(
        [(starts[n], starts[n] + min(len(lines[n]), _TOLD_CHARS)) for n in numbers]
        for numbers in (sums[-_MOST_SUMS:], at, blocks)
    ))  # fmt: skip


def _key(line: str) -> str:
    """A line after its time, with 9 for the digits of each number that is not 0."""
    return _NUMBER.sub("9", _body(line).lstrip())


def _body(line: str) -> str:
    """The beginning of a line after its time."""
    return _BEFORE.sub("", line[:_TOLD_CHARS], count=1).rstrip()


def _block(lines: Sequence[str], at: int, failed: Collection[str]) -> list[int]:
    """The lines that tell of a failure: its own, and the first deeper ones after it; of a traceback the last."""
    head = _body(lines[at])
    depth, is_trace = len(head) - len(head.lstrip()), head.lstrip().startswith("Traceback")
    block = [at]
    for n in range(at + 1, min(len(lines), at + _BLOCK_LINES)):
        line = _body(lines[n])
        if not line and n + 1 < len(lines) and _body(lines[n + 1])[: depth + 1].isspace():
            continue
        is_deeper = line[: depth + 1].isspace()
        if not line or not (is_deeper or is_trace) or (not is_trace and _key(line) in failed):
            break
        block.append(n)
        if not is_deeper:  # the exception of a traceback
            break
    while at and lines[at][:2] == "E " and lines[at - 1][:1] == ">":  # the line of a test's assertion
        at -= 1
        block.insert(0, at)
    return [block[0], *block[1:][-_LAST:]] if is_trace else block[:_FIRST]


def _diff(text: str) -> str:
    """A diff in a few words: its file or how many it has, and the lines that it adds and removes."""
    if not _DIFF.match(text) and not _DIFF.match(text.partition("\n")[2]):
        return ""
    files = list(dict.fromkeys(_DIFF_FILE.findall(text)))
    added = len(re.findall(r"^\+(?!\+\+ )", text, re.M))
    removed = len(re.findall(r"^-(?!-- )", text, re.M))
    name = files[0].rpartition("/")[2] if len(files) == 1 else f"{len(files)} files"
    return f"diff of {name}: +{added} -{removed}" if files or added or removed else ""


def _labelled(text: str) -> list[tuple[str, str]]:
    """The keys and values in lines such as ``key: value``: those that stand once, if any do, as rows repeat keys."""
    rows = [line for line in text.split("\n") if any(map(str.isalnum, line))]
    for sign in ("|", "\t", ","):
        counts = [0, *(row.strip("| ").count(sign) for row in rows), 0]
        for n, row in enumerate(rows[:-1], 1):  # a header and one row
            if counts[n] and counts[n] == counts[n + 1] and counts[n] not in (counts[n - 1], counts[n + 2]):
                names, cells = ([c.strip(' "\r') for c in r.strip("| ").split(sign)] for r in (row, rows[n]))
                pairs = [(name, cell) for name, cell in zip(names, cells, strict=True) if name and cell]
                if any(is_id(*pair) for pair in pairs):
                    return pairs
    labelled = _LABELLED.findall(text)
    times = Counter(_DIGITS.sub("#", key) for key, _ in labelled)
    once = [(key, value) for key, value in labelled if times[_DIGITS.sub("#", key)] == 1]
    return [(key.rpartition(".")[2], value) for key, value in once or labelled]


def _in_list(leaf: Leaf) -> bool:
    trail = leaf.trail
    while trail is not None:
        trail, step = trail
        if isinstance(step, int):
            return True
    return False


def _telling(
    pairs: Iterable[tuple[str, str]], seen: Collection[str], top_values: Collection[str]
) -> tuple[str, list[str]]:
    """Up to three (key, value) pairs as text, the state first, then ids, and their values.

    A value of ``top_values`` is an id already by its spelling; those in ``seen`` are left out.
    """
    return _parts(
        [
            (0 if is_state else 1 if is_id(key, text) else 2, key, text)
            for key, text in pairs
            if len(key) <= _TELLING_CHARS
            and text not in seen
            and (
                (is_state := _STATE.search(key) is not None)
                or _TELLING.search(key)
                or (text in top_values and is_id("", text))
            )
        ]
    )


def _parts(chosen: Sequence[tuple[int, str, str]]) -> tuple[str, list[str]]:
    """Up to three pairs, by their rank, as room allows; one of a key, but for ids."""
    parts: dict[str, str] = {}  # by value
    room = _TELLING_CHARS
    keys: set[str] = set()
    for rank, key, text in sorted(chosen, key=lambda ranked: ranked[0]):
        part = f"{key}={clip(text, _ID_CHARS if rank == 1 else 32)}"
        is_more = rank == 0 and any(p in keys for p in keys)
        if len(part) <= room and text not in parts and not is_more and not (rank != 1 and key in keys):
            keys.add(key)
            parts[text] = part
            room -= len(part) + 2
        if len(parts) == 3:
            break
    return ", ".join(parts.values()), list(parts)


def is_id(key: str, value: str) -> bool:
    """Return whether a value is an identifier: by its key and its digits, or by its spelling."""
    if _CODE.search(value):
        return False
    if _ID_KEY.search(key):
        return any(map(str.isdigit, value))
    return len(value) >= _LEAST_ID and kind_of(value) in _IDS and not _NO_ID.search(value)


def tells_id(outcome: str) -> bool:
    """Return whether an outcome contains an identifier."""
    return any(is_id(*part.split("=", 1)) for part in outcome.split(", ") if "=" in part)


def is_excerpt(outcome: str) -> bool:
    """Return whether an outcome is a line of the output or names of its items: a quote of the output says more."""
    return _EXCERPT.search(outcome) is not None


def _error_text(text: str, value: Any, code: int | None) -> str:
    """The words that say why a call failed: a member of an object, the sum of tests, an exception, a line."""
    for leaf in islice(leaves(value), 40) if isinstance(value, dict) else ():
        if isinstance(leaf.value, str) and leaf.value and leaf.key in _ERROR_KEYS:
            status = next((str(v) for k, v in value.items() if k in STATUS_KEYS and isinstance(v, int)), "")
            return clip(f"{status} {_LABEL.sub('', one_line(leaf.value))}".lstrip(), _ERROR_CHARS)
    lines = lines_at_the_ends(_TAG.sub("", _LABEL.sub("", _SCRIPT.sub("", text))))
    near = lines[-12:]
    failed = next((line for line in lines if FAILED_LINE.match(line)), "")
    if summed := next((n for n in reversed(near) if len(n) <= 160 and _SUMS[0].search(n)), ""):
        detail = failed if failed and failed not in summed else next(filter(PROBLEM.search, lines), "")
        summed = _LABEL.sub("", summed.rstrip("=: "))
        return clip(
            f"{summed}; {_LABEL.sub('', detail)}" if detail and summed not in detail else summed,
            _SUMMED_CHARS,
        )
    raised = next((n for n, line in enumerate(lines) if line.startswith("Traceback (most recent")), None)
    if raised is not None:
        exceptions = (n for n in reversed(lines[raised:]) if re.match(r"[\w.]+(?:: |\Z)", n))
        return clip(next(exceptions, lines[-1]), _ERROR_CHARS)
    at = next((n for n, line in enumerate(lines) if " " in line and PROBLEM.search(line)), -1)
    if at < 0 and code and lines:  # what it printed last
        return clip(f"exit code {code}: {lines[-1]}", _ERROR_CHARS)
    at = max(at, 0)
    problem = failed or "; ".join(lines[at : at + (len(lines[at]) < _SHORT_PROBLEM) + 1] if lines else ())
    return clip(_LABEL.sub("", problem), _ERROR_CHARS)
