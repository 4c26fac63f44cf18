"""What a session's bank knows of a conversation, as a text: a summary for a compaction, or what one lacks."""

from __future__ import annotations

import logging
import re

from memory_bank.bank.session import MemoryBankState, Session
from memory_bank.context.policies.evidence import NOTE_HEAD, NOTE_SHARE, fed_evidence
from memory_bank.plan import NO_PLAN
from memory_bank.selection.index import Selection
from memory_bank.selection.thread import thread_room
from memory_bank.transcript.harness import SUMMARY_OPENINGS, asks_for_summary, persons_text
from memory_bank.transcript.messages import MARK, MessageKind, in_full, kind_of, message_text, read
from memory_bank.transcript.quoting import Mark, fence, quote_lines
from memory_bank.transcript.shortening import fit_text
from memory_bank.transcript.transcript import View

log = logging.getLogger("memory_bank.MemoryBankStrategy")

LEAST_TOKENS = 200  # a smaller budget has no room for anything of use
_WORDS_SHARE, _LAST_SHARE, _SUMMARY_SHARE = 0.2, 0.08, 0.15  # of the budget, at most
_FENCED = re.compile(rf"{re.escape(MARK)}([0-9a-f]{{8}})>.*?{Mark.CLOSING} seal=\1>\s*", re.S)


def what_is_known(
    session: Session | None, budget: int, *, lacking: str = "", users_words: bool = False
) -> str:
    """What a session knows of its conversation after its latest step, in at most ``budget`` tokens; "" for nothing.

    The text is the list of calls, the agent's latest plan and words, and what of the outputs the next calls may
    need, all fenced as data. ``lacking``: a summary that stands beside it and whose content it need not repeat.
    ``users_words``: with the user's messages before that, for clients that do not keep them, and what an earlier
    summary said. The session is one of a strategy with a memory bank; others know nothing. Raises StorageError.
    """
    if not isinstance(session, MemoryBankState) or session.last_plan is NO_PLAN or budget < LEAST_TOKENS:
        return ""
    with session.lock:
        view, count = session.last_plan.view, session.counter.count_text
        memory = fed_evidence(view, session, session.settings)
        words = _users_words(view, session, int(budget * _WORDS_SHARE)) if users_words else ""
        said = "" if lacking else _last_words(view, session, int(budget * _LAST_SHARE))
        if note := session.note:
            said += f"{NOTE_HEAD}{quote_lines(fit_text(note, int(budget * NOTE_SHARE), count))}\n"
        if users_words:
            said = _earlier_summary(view, session, int(budget * _SUMMARY_SHARE)) + said
        after = session.step_count + 1
        room = budget - count(words) - count(fence(said, session.session_id)) - 4
        hint = in_full(session.record_tool)
        listed = memory.thread.tell(
            after, min(room, thread_room(room, len(memory.numbers)) // 2), more=int(room * 0.25), hint=hint
        )
        asked = (
            [words] if users_words or lacking else [message_text(m) for m in view.messages if _is_users(m)]
        )
        try:
            selection = memory.index.select(
                anchor=[lacking, *asked],
                tail_interaction=after,
                budget=room - listed.tokens - 1,
                listed=listed.text,
            )
        except Exception as e:
            log.warning("session %s: choosing excerpts failed (%s)", session.session_id, type(e).__name__)
            selection = Selection()
        known = said + listed.text + selection.text
        return fence(known, session.session_id, before=words) if known else words


def _is_users(message: object) -> bool:
    return kind_of(message) is MessageKind.USER


def _users_words(view: View, session: MemoryBankState, room: int) -> str:
    """The user's messages without what clients add, the task and the newest of them; "" where there is none."""
    texts = [persons_text(message_text(m)) for m in view.messages if _is_users(m)]
    said = [t for t in texts if t and not asks_for_summary(t)]
    # the list may hold a request for a summary alone
    task = session.database.get_task(session.session_id) or view.task
    said = [task, *(t for t in said if t != task)] if task else said
    if not said:
        return ""
    count = session.counter.count_text
    kept = [fit_text(said[0], room // 2, count)]
    room -= count(kept[0]) + count(Mark.USERS) + 3
    for text in reversed(said[1:]):
        shown = fit_text(text, room // 2, count) if room > 20 else ""
        if not shown:
            break
        room -= count(shown) + 2
        kept.insert(1, shown)
    return f"{Mark.USERS}\n" + "".join(f"- {quote_lines(text)}\n" for text in kept) + "\n"


def _earlier_summary(view: View, session: MemoryBankState, room: int) -> str:
    """What a summary in the messages says beside what a bank had fenced in it; "" without one."""
    texts = [message_text(m).strip() for m in view.messages if _is_users(m)]
    text = next((_FENCED.sub("", t) for t in reversed(texts) if t.startswith(SUMMARY_OPENINGS)), "")
    return _under(f"{Mark.EARLIER_SUMMARY}the conversation:", text, room, session)


def _last_words(view: View, session: MemoryBankState, room: int) -> str:
    texts = (message_text(m) for m in reversed(view.messages) if read(m, "role") == "assistant")
    text = next((t for t in texts if t.strip()), "")
    return _under(Mark.LAST, text, room, session)


def _under(head: str, text: str, room: int, session: MemoryBankState) -> str:
    """A text, quoted in at most ``room`` tokens below its heading; "" for none."""
    return f"{head}\n{quote_lines(fit_text(text, room, session.counter.count_text))}\n" if text else ""
