"""The last check of a context: where it breaks a rule that the client's messages keep, these are sent instead."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from memory_bank.bank.session import Session
from memory_bank.errors import HistoryError, MessagesError
from memory_bank.plan import Choice, Context, Form, Plan
from memory_bank.pricing import common_length
from memory_bank.transcript.anthropic import MOST_CACHE_MARKS, Thinking, answered_turn, cache_marks
from memory_bank.transcript.chat import CHAT
from memory_bank.transcript.messages import (
    MessageKind,
    content_text,
    is_text_part,
    read,
    same_objects,
)
from memory_bank.transcript.transcript import copy_of, is_same
from memory_bank.transcript.turns import Part, PartWire, Wire

log = logging.getLogger("memory_bank.MemoryBankStrategy")

ENTRY = "an entry is no message"
PAIRS = "a call or a result stands alone"
ROLES = "user and assistant do not alternate"
REASONING = "reasoning stands in a wrong place"
CACHE_MARKS = "more than four cache marks"
EMPTY = "a content is empty"
SYSTEM = "the system message is not first"
LAST = "the last message is not last"
REFUSED = "the API would refuse it"
PREFIX = "contexts do not begin as those before, though nothing was folded"
RULES = (ENTRY, LAST, SYSTEM, PAIRS, ROLES, REASONING, EMPTY, CACHE_MARKS, REFUSED, PREFIX)
"""The rules, by what is said of a context that breaks one."""

BREAKS = 2
"""Contexts in a row that do not begin as the one before, after which a session goes on without memory."""

_HEARD = (MessageKind.USER, MessageKind.SYSTEM, MessageKind.RESULT)


def leave(
    context: Context, messages: Sequence[Any], session: Session, form: Form | None = None
) -> tuple[Context, Sequence[Any]]:
    """Return the context and the messages to send, in the form of the API; every context passes here.

    Where the context breaks a rule that ``messages`` keep, these are returned, and the plan names the rule.
    """
    came, wire = (messages, CHAT) if form is None else (form.source.source, form.source.wire)
    if same_objects(context, messages):
        return context, came
    try:
        sent: Sequence[Any] = context
        if form is not None:
            written = form.source.write(context.entries, context.since)
            sent = form.finish(written, form.source.place_of(context.since))
        passed = session.cache("passed", _Passed)
        shared = common_length(passed.sent, sent)
        repeated = common_length(passed.came, came)
        rule = "" if passed.keeps_prefix(context.plan, shared, len(came), repeated) else PREFIX
        if not rule and not _goes_on(sent, came, wire, shared, repeated):
            rule = broken_rule(sent, came, wire, Thinking.KEEP if form is None else form.thinking)
    except HistoryError as e:
        sent, rule = came, str(e).partition(":")[0]
    if rule:
        return _kept_back(context, messages, session, rule), came
    new = context.entries[shared:] if form is None else ()
    originals = set(
        map(id, (came[p] for p, change in new if p is not None and not change) if form is None else came)
    )
    # the caller may change what is not its own
    passed.sent = [*passed.sent[:shared], *(m if id(m) in originals else copy_of(m) for m in sent[shared:])]
    passed.came = [*came]
    if form is None:  # what leaves may be changed by the caller; the edits are used again
        edits = context.plan.edits
        edited = {
            n: context[n] for n, (place, change) in enumerate(context.entries) if change and place in edits
        }
        passed.give([*edited.values()])
        for n, message in zip(edited, passed.copies, strict=True):
            context[n] = message
    elif not same_objects(sent, came):
        session.recount(context, form.read(sent))
    return context, sent


@dataclass(slots=True)
class _Passed:
    """The lists that were sent and that came last, the fold, and how many contexts in a row broke a prefix.

    ``edited``: the edited messages of the last context; ``copies``: those of them that the caller has.
    """

    sent: Sequence[Any] = ()
    came: Sequence[Any] = ()
    fold: tuple[object, ...] = ()
    edited: Sequence[Any] = ()
    copies: Sequence[Any] = ()
    breaks: int = 0

    def give(self, edited: Sequence[Any]) -> None:
        """Copy the edited messages of a context; copies that the caller has not changed are given again."""
        repeated = common_length(self.edited, edited)
        copies = [*self.copies[:repeated]]
        if common_length(copies, edited) < repeated:
            copies = [g if is_same(e, g) else copy_of(e) for e, g in zip(edited, copies, strict=False)]
        self.edited, self.copies = edited, [*copies, *map(copy_of, edited[repeated:])]

    def keeps_prefix(self, plan: Plan, shared: int, came: int, repeated: int) -> bool:
        """Return whether contexts begin as those before; False for good after two in a row of one fold that do not.

        Each would be written to the provider's cache anew. What the client changed itself, such as the place of a
        cache mark, does not count. ``shared``: how many messages this list begins with that were sent last time, too;
        ``repeated``: how many of the messages that ``came`` repeat those that came last time.
        """
        # a fold that is not stored may be made anew at each step
        fold = (plan.fold, plan.choice.since) if plan.fold else (plan.unchanged and bool(plan.edits),)
        if self.breaks < BREAKS and any(fold) and fold == self.fold and came > len(self.came):
            is_broken = len(self.sent) - shared > len(self.came) - repeated
            self.breaks = self.breaks + 1 if is_broken else 0
        self.fold = fold
        return self.breaks < BREAKS


def _goes_on(sent: Sequence[Any], came: Sequence[Any], wire: Wire[Any], shared: int, repeated: int) -> bool:
    """Return whether both lists go on as those before, which broke no rule, so that these break none."""
    first = shared - 1  # the last message of the step before stands before the new ones in both
    at = len(came) - len(sent) + first
    is_same_end = shared > 0 <= at and same_objects(sent[first:], came[at:])
    if not is_same_end or repeated <= at:
        return False
    # who spoke last may be somebody else in the one list than in the other
    new, speaks = sent[shared:], (MessageKind.USER, MessageKind.SAY)
    kinds = [{part.kind for part in wire.parts(m)} for m in new]
    return not any(of and of <= {*speaks} for of in kinds) and not _faults(new, wire).alone


def _kept_back(context: Context, messages: Sequence[Any], session: Session, rule: str) -> Context:
    """The messages as they came, with a plan that says why."""
    plan = replace(
        context.plan,
        choice=Choice(keep_all=True),
        tokens=context.plan.full_tokens,
        memory_tokens=0,
        memory=None,
        host=None,
        unchanged=True,
        why_unchanged=f"the context would be worse than what came: {rule}",
        rule=rule,
    )
    if session.last_plan is context.plan:
        session.last_plan = plan
    if rule not in session.rules_logged:
        session.rules_logged.add(rule)
        log.warning(
            "session %s: a context is not sent, the messages go as they came: %s", session.session_id, rule
        )
    return Context(messages, plan, [(position, {}) for position in range(len(messages))])


def broken_rule(
    sent: Sequence[Any], came: Sequence[Any], wire: Wire[Any] = CHAT, thinking: Thinking = Thinking.KEEP
) -> str:
    """The first of RULES by which the messages that leave are worse than those that came; "" for none.

    Both are lists of the wire's messages. ``thinking``: what the provider demands of thinking blocks.
    Linear; the messages that came are read only where what leaves has a fault.
    """
    if not (sent and came):
        return LAST if sent or came else ""
    came_ids = set(map(id, came))
    new = [message for message in sent if id(message) not in came_ids]
    kinds = {kind for kind in set(map(type, came)) if not issubclass(kind, str | dict | list | None)}
    if not all(_is_message(message, kinds) for message in new):
        return ENTRY
    try:
        ours = _faults(sent, wire)
    except MessagesError:
        return ENTRY
    if _names(sent[-1], wire) != _names(came[-1], wire):
        return LAST
    if _moves_system(sent, came, new, wire):
        return SYSTEM
    if ours != _Faults():
        theirs = _faults(came, wire)
        if ours.alone - theirs.alone:
            return PAIRS
        if theirs.alternates and not ours.alternates:
            return ROLES
        if ours.stray > theirs.stray:
            return REASONING
        if ours.empty - theirs.empty:
            return EMPTY
    if thinking is Thinking.KEEP_LATER and _thinks(came, wire) and not _thinks(sent, wire):
        return REASONING
    count = cache_marks(sent)
    if count > MOST_CACHE_MARKS and count > cache_marks(came):
        return CACHE_MARKS
    return REFUSED if wire.errors(sent) and not wire.errors(came) else ""


def _is_message(message: object, kinds: set[type]) -> bool:
    return type(message) in kinds or any(isinstance(read(message, key), str) for key in ("role", "type"))


def _names(message: Any, wire: Wire[Any]) -> set[tuple[MessageKind, str]]:
    """A message's texts, calls and answers, without its contents."""
    return {(part.kind, str(part.call_id)) for part in wire.parts(message)}


def _system_texts(message: Any, wire: Wire[Any]) -> list[Any]:
    return [part.value for part in wire.parts(message) if part.kind is MessageKind.SYSTEM]


def _moves_system(sent: Sequence[Any], came: Sequence[Any], new: Sequence[Any], wire: Wire[Any]) -> bool:
    """Return whether the system message that came first is not the first that leaves, or no longer at the start.

    Others may be joined to it, where what stood between them is folded.
    """
    is_first = bool(_system_texts(came[0], wire))
    if (is_first and sent[0] is came[0]) or not (is_first or any(_system_texts(m, wire) for m in new)):
        return False
    then = next((texts for m in came if (texts := _system_texts(m, wire))), [])
    now = next((texts for m in sent[: 1 if is_first else None] if (texts := _system_texts(m, wire))), [])
    return not "".join(map(content_text, now)).startswith("".join(map(content_text, then)))


def _thinks(messages: Sequence[Any], wire: Wire[Any]) -> bool:
    """Return whether the turn that is being answered has a thinking block."""
    if not isinstance(wire, PartWire):
        return False
    at = answered_turn(messages, wire)
    return at is not None and bool(wire.bound(messages[at]))


@dataclass(slots=True)
class _Faults:
    """The errors in a list: calls and results that stand ``alone``, ``stray`` reasoning, ``empty`` contents."""

    alone: Counter[tuple[str, ...]] = field(default_factory=Counter)
    empty: Counter[tuple[str, ...]] = field(default_factory=Counter)
    stray: int = 0
    alternates: bool = True


def _faults(messages: Sequence[Any], wire: Wire[Any]) -> _Faults:
    """The errors in a list of a wire's messages. Raises MessagesError for what the wire cannot read."""
    faults = _Faults()
    waiting: Counter[tuple[str, ...]] = Counter()  # calls without a result so far
    is_answered = is_thinking = False
    turns: list[str] = []  # who spoke, without calls and results
    spoken = ""  # an assistant's text that a call may follow in the same turn

    def close() -> None:
        for key, count in waiting.items():
            if count > 0:
                faults.alone["call", *key] += count
        waiting.clear()

    for message in messages:
        parts = [*wire.parts(message)]
        kinds = {part.kind for part in parts}
        results_first = sorted(parts, key=_after_results) if len(parts) > 1 else parts
        for part in results_first:
            kind, key = part.kind, _key(part)
            if kind is MessageKind.RESULT:
                is_answered = True
                if waiting[key] > 0:
                    waiting[key] -= 1
                else:
                    faults.alone["result", *key] += 1
            elif kind is not MessageKind.OTHER and wire.is_ordered and (is_answered or kind in _HEARD):
                close()
                is_answered = False
            if kind is MessageKind.CALL:
                waiting[key] += 1
            if is_thinking and kind in _HEARD:
                faults.stray += 1
            is_thinking = kind is MessageKind.REASONING
        for kind in kinds - {MessageKind.OTHER, MessageKind.REASONING, MessageKind.CALL}:
            same_kind = [part for part in parts if part.kind is kind]
            if kind is MessageKind.RESULT:
                for part in same_kind:
                    if _is_empty(part.value):
                        faults.empty["result", *_key(part)] += 1
            elif all(_is_empty(part.value) for part in same_kind) and (kind in _HEARD or len(kinds) == 1):
                faults.empty[kind.value,] += 1
        if MessageKind.CALL in kinds:
            spoken = ""
        elif MessageKind.SAY in kinds and wire.joins_turn:
            spoken = "assistant"
        elif MessageKind.SAY in kinds:
            turns.append("assistant")
        elif MessageKind.USER in kinds:
            turns += [spoken, "user"] if spoken else ["user"]
            spoken = ""
    close()
    faults.stray += is_thinking
    turns += [spoken] if spoken else []
    faults.alternates = all(one != other for one, other in pairwise(turns))
    return faults


def _after_results(part: Part) -> bool:
    return part.kind is not MessageKind.RESULT


def _key(part: Part) -> tuple[str, ...]:
    """The key that pairs a call with its result; an id may be any JSON."""
    return ("id", str(part.call_id)) if part.call_id is not None else ("name", str(part.name))


def _is_empty(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(is_text_part(part) and not content_text([part]) for part in value)
    return value is None or (isinstance(value, str | dict) and not value)
