"""The pipeline of every strategy: read the messages, store what is new, choose, plan, render."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from memory_bank.bank.session import Session
from memory_bank.config import MemoryBankSettings
from memory_bank.faults import fault_point
from memory_bank.plan import Choice, Context, Plan
from memory_bank.pricing import Ledger, common_length
from memory_bank.transcript.chat import edited_message
from memory_bank.transcript.messages import MessageKind, kind_of, read, record_tool, same_objects
from memory_bank.transcript.quoting import fence
from memory_bank.transcript.transcript import View, digest_of, is_same
from memory_bank.transcript.turns import ADDED, Change, Edit, Entry

log = logging.getLogger("memory_bank.MemoryBankStrategy")


@dataclass(frozen=True)
class Policy:
    """A context strategy: what it chooses, and what the pipeline needs to know to carry that out.

    ``choose`` gets the view of the messages and the session in which they are stored. ``bank``: the settings
    by which a MemoryBankState stores records; None for a policy that needs no memory. ``reads_insights``: a
    choice needs the insights of the present step, so that they are stored before it.
    """

    name: str
    choose: Callable[[View, Any], Choice]
    bank: MemoryBankSettings | None = None
    llm_client: object = None
    reads_insights: bool = True


def build_context(
    messages: Sequence[object],
    session: Session,
    policy: Policy,
    tools: Sequence[object] | None = None,
    *,
    stores: bool = True,
) -> Context:
    """Build the context of the next model call. ``messages`` are never changed.

    ``tools``: those of the call; the context names ``get_record`` only where it is among them. ``stores``: what is
    new in the messages is stored.

    Raises MessagesError, ConfigError, EmbeddingError, StorageError. Nothing that was stored is lost then, and
    the same call can be made again.
    """
    with session.lock:
        session.prepare(policy.bank, policy.llm_client)
        session.record_tool = record_tool(tools)
        view = session.read(messages)
        if stores:
            session.store(view, insights_later=not policy.reads_insights)
        context = render(make_plan(view, policy.choose(view, session), session, policy))
        plan = session.last_plan = context.plan
        if plan.over and not session.over_budget_logged:
            session.over_budget_logged = True
            log.warning(
                "%s: the context has %s tokens, %s over its budget of %s: "
                "system prompt, user turns and last interaction alone take %s",
                plan.strategy, f"{plan.tokens:,}", f"{plan.over:,}", f"{plan.budget:,}", f"{plan.kept_tokens:,}",
            )  # fmt: skip
        log.debug(
            "Context constructed: %s, %d messages of %d tokens become %d tokens",
            plan.strategy, len(view.messages), plan.full_tokens, plan.tokens,
        )  # fmt: skip
        fault_point("step.done")
        return context


def make_plan(view: View, choice: Choice, session: Session, policy: Policy) -> Plan:
    """Count what a choice costs, and keep the messages where the choice saves nothing."""
    memory, host, in_memory = None, None, 0
    if choice.text and not choice.unchanged:
        last = session.last_plan  # between folds the same text is not fenced again
        is_same_text = (last.choice.text, last.choice.role) == (choice.text, choice.role)
        previous = last.memory if is_same_text else None
        memory = previous or memory_message(choice.text, session.session_id, choice.role)
        host = host_of(view, choice) if choice.role == "user" else None
        in_memory = _added_tokens(view, memory, host, session)
    tokens = in_memory + choice_tokens(view, choice)
    why = choice.unchanged
    if not why and not choice.may_cost_more and tokens >= view.full_tokens:
        why = "the full history costs no more"
    if why:
        memory, host, in_memory = None, None, 0
        choice = replace(choice, whole=(), edits=choice.unfolded, keep_all=True, since=None, fold=None)
        tokens = choice_tokens(view, choice)
    return Plan(
        view=view,
        choice=choice,
        strategy=policy.name,
        tokens=tokens,
        full_tokens=view.full_tokens,
        kept_tokens=view.kept_tokens,
        memory_tokens=in_memory,
        unchanged=bool(why),
        why_unchanged=why,
        counter=session.counter.name,
        embedder=session.embedder_name,
        observer=session.observer_name,
        memory=memory,
        host=host,
    )


def _added_tokens(view: View, memory: Mapping[str, str], host: int | None, session: Session) -> int:
    """The tokens that a memory message adds, or its text to the user's message that it joins."""
    last = session.last_plan
    if (last.memory, last.host, last.counter) == (memory, host, session.counter.name) and (
        host is None or is_same(last.view.messages[host], view.messages[host])
    ):
        return last.memory_tokens
    if host is None:
        return session.counter.count_message(memory)
    joined = edited_message(view.messages[host], {ADDED: memory["content"]})
    return session.counter.count_message(joined) - view.tokens_between(host, host + 1)


def memory_tokens(choice: Choice, session: Session) -> int:
    """The tokens of the message that shows a choice's memory; 0 without one."""
    if not choice.text:
        return 0
    return session.counter.count_message(memory_message(choice.text, session.session_id, choice.role))


def choice_tokens(view: View, choice: Choice) -> int:
    """The tokens of a choice's context without the memory message."""
    tokens = view.full_tokens if choice.keep_all else view.kept_tokens + sum(e.tokens for e in choice.whole)
    return tokens + (_edited_tokens(view, choice) if choice.edits else 0)


def _edited_tokens(view: View, choice: Choice) -> int:
    """The tokens of the messages in another form, less those of them that are counted otherwise."""
    shown = chain(
        view.kept, *(range(e.start, e.stop) for e in choice.whole), range(view.tail_start, len(view.messages))
    )
    counted = choice.edits if choice.keep_all else choice.edits.keys() & {*shown}
    tokens = sum(edit.tokens for edit in choice.edits.values())
    return tokens - sum(view.tokens_between(p, p + 1) for p in counted)


def charge_step(context: Context, session: Session) -> None:
    """Add what a step costs to the session's ledger, whose context is sent."""
    plan, ledger, view = context.plan, session.ledger, context.plan.view
    sent: Sequence[bytes] = view.digests[: len(view.messages)]
    came, sizes = sent, view.tokens_before
    if not same_objects(context, view.messages):
        sent, sizes = _measured(context, session)
    cache, beside = session.prefix_cache, ledger.beside + ledger.added
    common, first, marked = beginnings(view, ledger)
    if ledger.unmarked:
        sizes = [0, *(beside + n for n in sizes[: len(sent) + 1])]
        sizes[1] -= ledger.added if ledger.head == 1 else 0  # memory's tools stand behind the client's
        sent = [ledger.unmarked, *sent]
        begin = min(ledger.head or 2, 1 + first)
        if not (cache.holds and ledger.sent[:begin] == sent[:begin]):
            ledger.sent = ()
    length = common_length(ledger.sent, sent)
    standing = max(0, sizes[length] - beside) if ledger.unmarked else sizes[length]
    of_full = view.tokens_before[common], view.tokens_before[marked]
    charge = ledger.step(cache.ratios, plan.tokens, standing, plan.full_tokens, *of_full)
    charge.standing, charge.is_longer = standing, 0 < length == len(ledger.sent)
    if ledger.unmarked:
        head = ledger.head
        if not same_objects(context, view.messages):  # the client's marks stand where its messages do
            places = (n for n, (p, _) in enumerate(context.entries, 2) if p is not None and p < head - 1)
            head = max(places, default=min(head, 1))
        end = ledger.mark_cache(charge, cache, sizes, length, head)
        if end < len(sent) or ledger.head > begin:
            sent, came = sent[:end], view.digests[:marked]
    session.charge(charge, sent, came)


def beginnings(view: View, ledger: Ledger) -> tuple[int, int, int]:
    """Return three numbers of first messages: sent before, without an interaction, under the client's cache marks.

    The third is 0 unless the client's cache marks cover a head of the messages and no more.
    """
    count, first = len(view.messages), view.interactions[0].start if view.interactions else view.tail_start
    return min(ledger.shared_with(view.digests), count), first, min(max(0, ledger.head - 1), count)


@dataclass(slots=True)
class _Measured:
    """The digests of the last context's messages and the tokens before each, and what they were made of."""

    made_of: tuple[object, ...] = ()
    came: Sequence[bytes] = ()
    entries: Sequence[Entry] = ()
    digests: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=lambda: [0])


def _measured(context: Context, session: Session) -> tuple[list[bytes], list[int]]:
    """The digests of a context's messages and the tokens before each; what the last one began with is known."""
    plan, last = context.plan, session.cache("measured", _Measured)
    view, edits, entries = plan.view, plan.edits, context.entries
    made_of = session.counter, plan.memory_tokens, plan.host, plan.memory
    is_alike = view.digests is last.came and made_of == last.made_of  # a list that has only grown
    common = common_length(last.entries, entries) if is_alike else 0
    digests, sizes = last.digests[:common], last.sizes[: common + 1]
    for (position, change), message in zip(entries[common:], context[common:], strict=True):
        if position is not None and position in edits and change:
            digest, tokens = edits[position].digest, edits[position].tokens
        elif position is None:
            digest = digest_of(message)
            is_memory = message == plan.memory
            tokens = plan.memory_tokens if is_memory else session.counter.count_message(message)
        else:
            digest = digest_of(message) if change else view.digests[position]
            tokens = view.tokens_between(position, position + 1)
            if change and position == plan.host:
                tokens += plan.memory_tokens
            elif change:
                tokens = session.counter.count_message(message)
        digests.append(digest)
        sizes.append(sizes[-1] + tokens)
    last.made_of, last.came, last.entries, last.digests, last.sizes = (
        made_of,
        view.digests,
        entries,
        digests,
        sizes,
    )
    return digests, sizes


def render(plan: Plan) -> Context:
    """The messages of a plan: what is never dropped, the memory, past interactions that are shown, the tail.

    The messages keep their order. Past interactions come after the messages that are never dropped, or at their old
    places among them if ``in_place`` (after a fold: from ``since`` on). The memory comes before them: appended to the
    user's message that is the plan's ``host``, else as a message of its own. An ``unchanged`` plan has all messages.
    """
    view, edits, memory = plan.view, plan.edits, plan.memory
    first, rest = _positions(view, plan.choice)
    changes: dict[int, Change] = {p: edit.change for p, edit in edits.items()}
    if memory is not None and plan.host is not None:
        changes[plan.host] = {ADDED: memory["content"]}
    unchanged: Change = {}
    entries: list[Entry] = [(p, changes.get(p, unchanged)) for p in first]
    if memory is not None and plan.host is None:
        entries.append((None, dict(memory)))
    entries += [(p, changes.get(p, unchanged)) for p in rest]
    return Context(_written(entries, view.messages, edits), plan, entries)


def _positions(view: View, choice: Choice) -> tuple[Sequence[int], list[int]]:
    """The positions of the messages that are shown: those before the memory, and those after it."""
    tail = range(view.tail_start, len(view.messages))
    if choice.keep_all:
        return range(view.tail_start), [*tail]
    whole = [p for e in choice.whole for p in range(e.start, e.stop)]
    if not choice.in_place and choice.since is None:
        return view.kept, [*whole, *tail]
    never_dropped = {*view.kept} if choice.unfolded else ()
    whole += [p for p in choice.edits if p < view.tail_start and p not in never_dropped]
    begin = min([*whole, view.tail_start if choice.since is None else choice.since])
    head = [p for p in view.kept if p < begin]
    return head, [*sorted({*whole, *view.kept[len(head) :]}), *tail]


def host_of(view: View, choice: Choice) -> int | None:
    """The position of the user's message that a memory message of the user joins, None where it stands alone.

    Many chat templates refuse two messages of the user in a row, calls and results aside. It is the last one before
    the memory unless the assistant has spoken since; the next one where there is none before. What stands before
    the memory stays as it is until the next fold, and so does the choice.
    """
    first, rest = _positions(view, choice)
    for position in chain(reversed(first), rest):
        kind = kind_of(view.messages[position])
        if kind is MessageKind.USER:
            content = read(view.messages[position], "content")
            return position if content is None or isinstance(content, str | list | tuple) else None
        if kind is MessageKind.SAY:
            return None
    return None


def _written(entries: Iterable[Entry], messages: Sequence[Any], edits: Mapping[int, Edit]) -> Iterator[Any]:
    """The chat messages of a context. An edited message is the same object at later steps."""
    for position, change in entries:
        if position is None:
            yield change
        elif change and position in edits:
            yield edits[position].message
        else:
            yield edited_message(messages[position], change) if change else messages[position]


def memory_message(text: str, session_id: str, role: str = "user") -> dict[str, str]:
    """The message that shows memory, its text fenced as data."""
    return {"role": role, "content": fence(text, session_id)}
