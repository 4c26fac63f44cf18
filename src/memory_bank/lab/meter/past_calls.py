"""Which past calls a context tells of, and which of them changed something.

The reference meter defines both (``evbench.acting``): a context tells of a call when one line of it has the tool's
name and what tells this call from the tool's other calls. A tool call in an assistant message counts as one line.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from memory_bank.lab.meter.copies import as_copied
from memory_bank.lab.meter.matching import normalise
from memory_bank.lab.meter.values import parsed_arguments
from memory_bank.lab.traces import content_texts
from memory_bank.transcript import MessageKind, calls_of, kind_of, read

_VALUE_CHARS = 24  # of an argument that a line must show
_LONG_ENOUGH = 12  # longer values are not preferred to one of this length

# A verb in a tool's name that changes something.
_CHANGING_NAME = re.compile(
    r"(?:^|[-_.:/ ])(?:create|update|delete|send|write|edit|insert|add|remove|move|rename|set|post|put|patch|upload"
    r"|cancel|refund|issue|book|pay|transfer|reply|submit|append|copy|replace|modify|exchange|return|forward|merge"
    r"|commit|push|close|assign|schedule|register|buy|order|deploy|drop|grant|overwrite|fill|click|type)"
    r"(?:$|[-_.:/ ])",
    re.I,
)
_RUNS_CODE = re.compile(r"bash|shell|python|execute|sql|code|query|command|run", re.I)
_CHANGING_CODE = re.compile(
    r"(?:^|[\n;&|]\s*)(?:sed -i|mv|cp|rm|mkdir|touch|pip install|patch|tee|chmod"
    r"|git (?:add|commit|apply|checkout|stash))\b"
    r"|>>?\s*[-./~\w]+"  # output into a file
    r"|<<\s*'?\"?\w+"  # a here-document
    r"|\b(?:INSERT|UPDATE|DELETE|CREATE|DROP|ALTER)\b"
    r"|open\([^)]*['\"][wa]b?['\"]"
    r"|\.(?:write|write_text|save|to_csv|commit|insert_many)\(",
    re.I,
)
_CAMEL_JOINT = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class PastCall:
    """One call of a trace: its tool, the scalars of its arguments as text, and whether it changed something."""

    name: str
    values: tuple[str, ...]
    changes: bool

    @property
    def short_values(self) -> list[str]:
        """The beginnings of its values in normal form."""
        return [_short(v) for v in self.values]


@dataclass(frozen=True, slots=True)
class Telling:
    """What a line must hold to tell of a call: the tool's name and up to two values, in normal form."""

    name: str
    values: tuple[str, ...]
    changes: bool


def past_calls(message: object) -> list[PastCall]:
    """The calls of an assistant message."""
    calls = []
    for call in calls_of(message):
        values = tuple(argument_texts(call.arguments))
        calls.append(PastCall(call.name, values, changes_something(call.name, values)))
    return calls


def argument_texts(arguments: object) -> Iterator[str]:
    """The strings and numbers in a call's arguments as text; arguments that are no JSON as they are."""
    stack: list[object] = [parsed_arguments(arguments)]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            stack.extend(reversed(list(node.values())))
        elif isinstance(node, (list, tuple)):
            stack.extend(reversed(node))
        elif isinstance(node, str):
            yield node
        elif node is not None and not isinstance(node, bool):
            yield str(node)


def changes_something(name: str, values: Iterable[str]) -> bool:
    """Whether a call changes something, judged by the tool's name and by what shells and code do."""
    if _CHANGING_NAME.search(_CAMEL_JOINT.sub("_", name)):
        return True
    return _RUNS_CODE.search(name) is not None and any(_CHANGING_CODE.search(as_copied(v)) for v in values)


def tellings(calls: Sequence[PastCall]) -> list[Telling]:
    """For each call: its tool and what tells it from the tool's other calls, the rarest value first.

    A second value is asked for when the rarest one occurs in several calls of the tool.
    """
    uses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for call in calls:
        uses[call.name].update(set(call.short_values))
    found = []
    for call in calls:
        count = uses[call.name]
        values = {short: None for v, short in zip(call.values, call.short_values, strict=True)
                  if len(v) >= 2 and len(short) >= 2}  # fmt: skip
        rarest = sorted(values, key=lambda v: (count[v], -min(len(v), _LONG_ENOUGH)))
        most = 2 if rarest and count[rarest[0]] > 1 else 1
        found.append(Telling(_line(call.name), tuple(rarest[:most]), call.changes))
    return found


def lines_of(context: Iterable[object]) -> list[str]:
    """The lines of a context in normal form that may tell of a call: all but those of tool outputs."""
    lines: list[str] = []
    for message in context:
        kind = kind_of(message)
        if kind is MessageKind.CALL:
            for call in calls_of(message):
                lines.append(_line(" ".join([call.name, *argument_texts(call.arguments)])))
        if kind is not MessageKind.RESULT:
            for text in content_texts(read(message, "content")):
                lines += map(_line, text.splitlines())
    return lines


def told(wanted: Sequence[Telling], lines: Sequence[str]) -> list[bool]:
    """Whether some line tells of each call."""
    by_name = {name: [line for line in lines if name in line] for name in {t.name for t in wanted}}
    return [any(all(v in line for v in t.values) for line in by_name[t.name]) for t in wanted]


@lru_cache(maxsize=50_000)
def _short(value: str) -> str:
    return normalise(value)[:_VALUE_CHARS].strip()


@lru_cache(maxsize=20_000)
def _line(text: str) -> str:
    return normalise(text)
