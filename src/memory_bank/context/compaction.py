"""A conversation as its session's bank knows it, as a text: a summary for a compaction, or what one lacks."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.bank.steps import agents_words
from memory_bank.context.evidence import (
    EXCERPTS_HEAD,
    RULES_SHARE,
    CallVersion,
    EvidenceMemory,
    chosen_rules,
    rule_excerpt,
)
from memory_bank.context.policies.evidence import NOTE_HEAD, NOTE_SHARE, fed_evidence
from memory_bank.plan import NO_PLAN
from memory_bank.records import InteractionRecord
from memory_bank.selection.effects import file_access, is_failure
from memory_bank.selection.files import changes_of, is_patch, is_same_path
from memory_bank.selection.index import Selection
from memory_bank.selection.thread import thread_room
from memory_bank.transcript.harness import HANDED_ON, SUMMARY_OPENINGS, asks_for_summary, persons_text
from memory_bank.transcript.jsontext import compact, parse_arguments
from memory_bank.transcript.messages import (
    Interaction,
    MessageKind,
    in_full,
    kind_of,
    message_text,
    read,
    readable_output,
)
from memory_bank.transcript.quoting import Mark, fence, one_line, quote_lines, without_fenced
from memory_bank.transcript.shortening import fit_text
from memory_bank.transcript.textcalls import plain_arguments
from memory_bank.transcript.transcript import View

log = logging.getLogger("memory_bank.MemoryBankStrategy")

TOLD = (
    "This work was begun in another session, with {calls:,} calls of tools{by}. Here stand what its user asked for "
    "and, as data, what its tools returned. Its #numbers are calls of that session and cannot be called up here. "
    "Files and services may have changed since: look again at what you are going to change."
)
RULES_ELSEWHERE = {
    name: f" Rules of the project may also stand in {file}: read it where there is one."
    for name, file in {"claude": "AGENTS.md", "codex": "CLAUDE.md", "opencode": "CLAUDE.md"}.items()
}
"""By client, the sentence about rules that it does not read by itself."""
MOST_FILES = 16  # that are named, the latest ones
MOST_EDITS = 64  # later edits of a file, after which what was written into it before is left out
_LONG_LINE = 24  # characters
LEAST_TOKENS = 200  # a smaller budget has no room for anything of use
_WORDS_SHARE, _LAST_SHARE, _SUMMARY_SHARE = 0.2, 0.08, 0.15  # of the budget, at most


def what_is_known(
    session: Session | None, budget: int, *, lacking: str = "", users_words: bool = False
) -> str:
    """A session's summary of its conversation after its latest step, in at most ``budget`` tokens; "" for nothing.

    The text is the list of calls, the agent's latest plan and words, and what of the outputs the next calls may
    need, all fenced as data. ``lacking``: a summary that stands beside it and whose content it need not repeat.
    ``users_words``: with the user's messages before that, for clients that do not keep them, and what an earlier
    summary said. The session is one of a strategy with a memory bank; others know nothing. Raises StorageError.
    """
    if not isinstance(session, MemoryBankState) or session.last_plan is NO_PLAN or budget < LEAST_TOKENS:
        return ""
    with session.lock:
        return _summary(session.last_plan.view, session, budget, lacking, users_words)


def _summary(
    view: View, session: MemoryBankState, budget: int, lacking: str, users_words: bool, stands: bool = False
) -> str:
    count = session.counter.count_text
    memory = fed_evidence(view, session, session.settings)
    words = _users_words(view, session, int(budget * _WORDS_SHARE)) if users_words else ""
    beside = "" if lacking else _last_words(view, session, int(budget * _LAST_SHARE))
    if note := session.note:
        beside += f"{NOTE_HEAD}{quote_lines(fit_text(note, int(budget * NOTE_SHARE), count))}\n"
    if users_words:
        beside = _earlier_summary(view, session, int(budget * _SUMMARY_SHARE)) + beside + _files(memory)
    after = session.step_count + 1
    room = budget - count(words) - count(fence(beside, session.session_id)) - 4
    rules, tokens, named = chosen_rules(memory, after, int(room * RULES_SHARE), count)
    quoted = "".join(rule_excerpt(memory, *rule) for rule in rules.items())
    room -= tokens
    hint = in_full(session.record_tool)
    listed = memory.thread.tell(
        after, min(room, thread_room(room, len(memory.numbers)) // 2), extra=int(room * 0.25), hint=hint
    )
    asked = [words] if users_words or lacking else [message_text(m) for m in view.messages if _is_users(m)]
    try:
        selection = memory.index.select(
            anchor=[lacking, *asked],
            tail_interaction=after,
            budget=room - listed.tokens - 1,
            listed=listed.text,
            without=[*(memory.places[t] for t in rules), *(_outdated(memory) if stands else ())],
        )
    except Exception as e:
        log.warning("session %s: choosing excerpts failed (%s)", session.session_id, type(e).__name__)
        selection = Selection()
    head = EXCERPTS_HEAD if quoted and not selection.text else ""
    text = f"{beside}{named}{listed.text}{selection.text}{head}{quoted}"
    return fence(text, session.session_id, before=words) if text else words


def handed_on(session: MemoryBankState, budget: int, *, to: str = "") -> str:
    """The text for a client that goes on with a session, in at most ``budget`` tokens; "" for one without records.

    ``to``: the client that goes on, a key of RULES_ELSEWHERE. The text is that of a compaction, made of what the
    bank has, with the files under work. It stands in a user's message, and a session that begins with it knows it by
    its tag. Raises StorageError.
    """
    with session.lock:
        session.reload_steps()
        if not session.steps:
            return ""
        count, end = session.counter.count_text, f"</{HANDED_ON[1:]}"
        client = session.database.get_session(session.session_id, "client")
        by = f" by {one_line(client)[:80]}" if client else ""
        head = f"{HANDED_ON}\n{TOLD.format(calls=len(session.steps), by=by)}{RULES_ELSEWHERE.get(to, '')}\n\n"
        room = budget - count(head) - count(end) - 8
        session.cache("shown calls").update(_calls_that_stand(session.fact_store.get_many([*session.steps])))
        text = _summary(_stored_view(session), session, room, "", users_words=True, stands=True)
        text = text.replace("\0", "\ufffd")  # no argument of a command may have it
        return f"{head}{text.replace(end[:-1], f'< {end[1:-1]}')}\n{end}\n"


def _calls_that_stand(records: Sequence[InteractionRecord]) -> dict[str, CallVersion]:
    """By trace_id, each call of which a part was undone, without that part.

    Undone is what an edit replaced, what was written into a file before it was written anew or removed, what was read
    of such a file, and what a later call with the same arguments returned otherwise.
    """
    versions: dict[str, CallVersion] = {}
    files: dict[str, list[tuple[str, list[str]]]] = {}  # by name, of each path what later calls take away
    later: dict[tuple[str, str], str] = {}  # by call the latest output
    looked: list[tuple[str, str, str]] = []  # what other calls returned
    replaced, restored = dict[str, None](), set[str]()  # lines that edits took away, or wrote
    for record in reversed(records):
        tool, output = record.tool_name, readable_output(record)[1]
        text = compact(record.raw_input) if record.input_text is None else record.input_text
        text = plain_arguments(tool, text)
        failed, gone, is_outdated = is_failure(output, tool, text), set[str](), False
        if not failed:
            later.setdefault((tool, text), output)
        stands = later.get((tool, text), output) == output
        changes = [] if failed else changes_of(tool, text)
        for change in changes:
            named = files.setdefault(change.path.rpartition("/")[2], [])
            since = next((s for path, s in named if is_same_path(path, change.path)), None)
            if since is None:
                named.append((change.path, since := []))
            texts = [hunk.new for hunk in change.hunks if hunk.new.strip()]
            undone = [t for t in texts if len(since) >= MOST_EDITS or any(o in t or t in o for o in since)]
            stands = stands and (change.kind == "read" or not texts or len(undone) < len(texts))
            stands = stands and not (change.kind == "read" and "" in since)
            is_outdated |= change.kind == "read" and bool(since)
            gone.update(undone, (hunk.old for hunk in change.hunks))
            if change.kind in ("add", "delete"):
                since[:] = [""]  # which is in any text
            elif change.kind == "update":
                since += [hunk.old if hunk.old.strip() else "\0" for hunk in change.hunks]
            restored.update(*(_telling(t) for t in texts if t not in undone))
            replaced.update(dict.fromkeys(t for h in change.hunks for t in _telling(h.old) - restored))
        if gone or is_outdated or not stands:
            shown = compact(_without(parse_arguments(text), gone)) if gone else text
            quoted = output if stands else ""
            versions[record.trace_id] = CallVersion(text, shown, quoted, "" if is_outdated else quoted)
        if stands and not (failed or changes):
            looked.append((record.trace_id, text, output))
    lines = [*replaced][:MOST_EDITS]
    for trace_id, text, output in looked:
        if any(line in output for line in lines):
            rest = (n for n in output.splitlines(keepends=True) if not any(line in n for line in lines))
            versions[trace_id] = CallVersion(text, text, "".join(rest), "")
    return versions


def _telling(text: str) -> set[str]:
    """The lines of a text that hardly stand elsewhere by chance."""
    lines = {line.strip() for line in text.splitlines()}
    return {n for n in lines if len(n) >= _LONG_LINE or (len(n) >= _LONG_LINE // 3 and re.search(r"\d", n))}


def _outdated(memory: EvidenceMemory) -> Iterator[int]:
    """The outputs that show files as they were before an edit that cannot be applied to what is shown."""
    files, parsed = memory.index.files, memory.index.tables.parsed
    for trace_id, place in memory.places.items():
        copy = files.of_call(trace_id)
        if copy.missing if copy else files.changed_since(trace_id, "\n".join(parsed[place].cut.sources)):
            yield place


def _without(value: Any, gone: Collection[str]) -> Any:
    """Arguments without texts; of a patch the files and the lines that it adds."""
    if isinstance(value, dict):
        return {k: left for k, v in value.items() if (left := _without(v, gone)) != "" or v == ""}
    if isinstance(value, list):
        return [_without(v, gone) for v in value]
    if not isinstance(value, str):
        return value
    if is_patch(value):
        lines = {f"+{line}" for text in gone for line in text.splitlines()}
        return "\n".join(n for n in value.split("\n") if n[:3] == "***" or (n[:1] == "+" and n not in lines))
    for text in gone:
        if text == value or text[-1:] == "\n" or len(text) >= _LONG_LINE // 6:
            value = value.replace(text, "" if text == value or text[-1:] == "\n" else "…")
    return value


def _files(memory: EvidenceMemory) -> str:
    """A line that names the files of the latest calls, the newest last, and which were changed; "" for none."""
    files: dict[str, str] = {}
    for call in memory.index.tables.parsed:
        access = file_access(call.tool, call.arguments) if call.kind == "output" else None
        if access is not None:
            was = files.pop(path := one_line(access.path), "")
            files[path] = was if access.access == "read" else " (changed)"
    latest = [*files][-MOST_FILES:]
    folders = {path.rpartition("/")[0] for path in latest}
    common = os.path.commonpath(folders) if len({f[:1] == "/" for f in folders}) == 1 else ""
    names = [path.removeprefix(f"{common}/" if common else "") + files[path] for path in latest]
    return f"{Mark.FILES}{f' in {common}' if common else ''}: {', '.join(names)}\n" if names else ""


def _stored_view(session: MemoryBankState) -> View:
    """The conversation of a session as the bank has it: what user and agent said, and the calls by their records."""
    turns: dict[int, list[str]] = {}
    for trace_id, step in session.steps.items():
        turns.setdefault(step, []).append(trace_id)
    database, name, done = session.database, session.session_id, 0
    words, asked = agents_words(database, name), [*database.get_requests(name).items()]
    messages, users, calls = list[dict[str, str]](), list[int](), list[Interaction]()
    for ids in [*turns.values(), []]:
        while asked and (asked[0][1] <= done or not ids):
            users.append(len(messages))
            messages.append({"role": "user", "content": asked.pop(0)[0]})
        text = words.get(done, "") if ids else next(reversed(words.values()), "")
        messages.append({"role": "assistant", "content": text})
        if ids:
            calls.append(Interaction(len(messages) - 1, (messages[-1],), (), trace_ids=(*ids,)))
        done += len(ids)
    return View(
        messages, calls, users, len(messages), database.get_session(name, "task"), [0] * (len(messages) + 1)
    )


def _is_users(message: object) -> bool:
    return kind_of(message) is MessageKind.USER


def _users_words(view: View, session: MemoryBankState, room: int) -> str:
    """The user's messages without what clients add, the task and the newest of them; "" where there is none."""
    texts = [persons_text(message_text(m)) for m in view.messages if _is_users(m)]
    asked = [t for t in texts if t and not asks_for_summary(t)]
    # the list may hold a request for a summary alone
    task = session.database.get_session(session.session_id, "task") or view.task
    asked = [task, *(t for t in asked if t != task)] if task else asked
    if not asked:
        return ""
    count = session.counter.count_text
    quoted = [fit_text(asked[0], room // 2, count)]
    room -= count(quoted[0]) + count(Mark.USERS) + 3
    for text in reversed(asked[1:]):
        shown = fit_text(text, room // 2, count) if room > 20 else ""
        if not shown:
            break
        room -= count(shown) + 2
        quoted.insert(1, shown)
    return f"{Mark.USERS}\n" + "".join(f"- {quote_lines(text)}\n" for text in quoted) + "\n"


def _earlier_summary(view: View, session: MemoryBankState, room: int) -> str:
    """The words of a summary in the messages beside those that a bank had fenced in it; "" without one."""
    texts = [message_text(m).strip() for m in view.messages if _is_users(m)]
    openings = (*SUMMARY_OPENINGS, HANDED_ON)
    text = next((without_fenced(t) for t in reversed(texts) if t.startswith(openings)), "")
    return _under(f"{Mark.EARLIER_SUMMARY}the conversation:", text, room, session)


def _last_words(view: View, session: MemoryBankState, room: int) -> str:
    texts = (message_text(m) for m in reversed(view.messages) if read(m, "role") == "assistant")
    text = next((t for t in texts if t.strip()), "")
    return _under(Mark.LAST, text, room, session)


def _under(head: str, text: str, room: int, session: MemoryBankState) -> str:
    """A text, quoted in at most ``room`` tokens below its heading; "" for none."""
    return f"{head}\n{quote_lines(fit_text(text, room, session.counter.count_text))}\n" if text else ""
