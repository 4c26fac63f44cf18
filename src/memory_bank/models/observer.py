"""Summaries by a language model: of one record (the Observer), and running ones of blocks of past calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from memory_bank.config import MemoryBankSettings
from memory_bank.models.chat import as_chat_model, ask, failure_of, reply_text
from memory_bank.models.extraction import extract_summary
from memory_bank.ports import ChatModel, LLMClient
from memory_bank.prompts import fill_prompt, load_prompt
from memory_bank.records import Insight, InteractionRecord
from memory_bank.transcript.messages import readable_output
from memory_bank.transcript.quoting import one_line, quote_lines
from memory_bank.transcript.shortening import shorten

log = logging.getLogger("memory_bank.Observer")

EXTRACTIVE = "extractive"
_ARGUMENT_CHARS = 2_000
_TASK_CHARS = 4_000
_TURNS, _TURN_CHARS = 20, 500  # of the user's later turns, the latest, that a note is made of
_SUMMARY_CHARS = 4_000  # an answer far beyond 200 words is cut here
_BLOCK_CHARS = 60_000  # of all calls in one request for a running summary; of one call, and of its arguments:
_CALL_CHARS, _CALL_ARGUMENT_CHARS = 4_000, 800
_NOTE_CHARS = 24_000  # of all calls in one request for a note

T = TypeVar("T")
Complete = Callable[[list[dict[str, str]]], str]
"""Gives the text that a model answers to some messages; may raise anything."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why there is no summary by the model. ``again``: another attempt may succeed."""

    reason: str
    again: bool


@dataclass(frozen=True)
class Observer:
    """Summarises records as its settings say; by extraction without a chat model, or with the model "extractive".

    ``book`` counts a call before it is made, or returns why a limit of calls a day forbids it. ``logged``: the
    reasons of failures that were logged as a warning. ``is_durable``: `memory-bank bank observe` can make its
    summaries again.
    """

    chat: ChatModel | None = None
    settings: MemoryBankSettings = field(default_factory=MemoryBankSettings)
    book: Callable[[int | None], str | None] | None = None
    logged: dict[str, object] = field(default_factory=dict, compare=False)
    is_durable: bool = False

    @classmethod
    def create(cls, llm_client: object, settings: MemoryBankSettings, **options: Any) -> Observer:
        """The Observer of some settings; ``options`` are its other fields. Raises ConfigError for a wrong client."""
        chat = None if settings.observer_model == EXTRACTIVE else as_chat_model(llm_client)
        return cls(chat, settings, **options)

    @cached_property
    def name(self) -> str:
        """The source of its insights: ``"extractive"`` or ``"llm:MODEL"``."""
        model = self.settings.observer_model
        return EXTRACTIVE if self.chat is None or model == EXTRACTIVE else f"llm:{model}"

    def sends(self, record: InteractionRecord) -> bool:
        """Return whether a record is sent to the model: there is one, and the output is not too short."""
        least = self.settings.observer_min_chars
        if self.name == EXTRACTIVE or not least:
            return self.name != EXTRACTIVE
        return len(readable_output(record)[1] if record.output_text is None else record.output_text) >= least

    def extract(self, record: InteractionRecord, trouble: str | None = None) -> Insight:
        """A summary without a model; ``trouble``: why it is to be made again."""
        return Insight(record.trace_id, extract_summary(record), EXTRACTIVE, trouble)

    def ask(self, record: InteractionRecord, user_query: str) -> Insight | Trouble:
        """A summary by the model, or the reason why there is none; books the call."""
        summary = self._answer(self.messages(record, user_query))
        if isinstance(summary, Trouble):
            return summary
        log.debug("observed %s (%s): %d characters", record.tool_name, record.trace_id, len(summary))
        return Insight(record.trace_id, summary[:_SUMMARY_CHARS], self.name)

    def note(self, before: str, calls: Sequence[str], requests: Sequence[str]) -> str | Trouble:
        """The notes after more calls (the latest, if many), or why none. Raises PromptError, StorageError.

        ``requests``: what the user said, the task first.
        """
        sent: list[str] = []
        for call in reversed(calls):
            if sent and sum(map(len, sent)) + len(call) > _NOTE_CHARS:
                sent.append(f"({len(calls) - len(sent)} earlier calls are left out)")
                break
            sent.append(call)
        task, *later = requests or [""]
        later = [f"Then the user said: {shorten(None, _TURN_CHARS, text=s).text}" for s in later[-_TURNS:]]
        values = {"task": "\n".join([_shortened_task(task), *later]), "notes": before or "(none yet)"}
        values["calls"] = "\n\n".join(reversed(sent))
        return self._answer(fill_prompt(load_prompt("note"), values))

    def _answer(self, messages: list[dict[str, str]]) -> str | Trouble:
        """The model's answer, or the reason why there is none; books the call."""
        assert self.chat is not None, "only an Observer with a model is asked"
        if self.book is not None and (refused := self.book(self.settings.observer_calls_per_day)):
            return Trouble(refused, again=False)
        timeout = self.settings.observer_timeout
        try:
            summary = reply_text(ask(self.chat, messages, self.settings.observer_model, timeout)).strip()
        except TimeoutError:
            return Trouble(f"the model did not answer within {timeout:g} s", again=True)
        except Exception as e:  # a model may raise anything; the record is stored already
            return Trouble(failure_of(e), again=True)
        return summary or Trouble("the model's reply was empty", again=True)

    def observe(self, record: InteractionRecord, user_query: str) -> Insight:
        """Summarise a record; by extraction, with the reason, where the model fails."""
        if not self.sends(record):
            return self.extract(record)
        answer = self.ask(record, user_query)
        if isinstance(answer, Insight):
            return answer
        again = "stand in until `memory-bank bank observe` makes them again"
        self.warn(answer.reason, record, f"extractive summaries {again if self.is_durable else 'stay'}")
        return self.extract(record, answer.reason)

    def warn(self, reason: str, record: InteractionRecord, outcome: str) -> None:
        """Log why a record has no summary by the model: as a warning once for each reason, else for debugging."""
        first = object()  # of several threads one sets it
        level = logging.WARNING if self.logged.setdefault(reason, first) is first else logging.DEBUG
        log.log(level, "no summary of %s (%s): %s; %s", record.tool_name, record.trace_id, reason, outcome)

    def observe_all(self, records: Sequence[InteractionRecord], user_query: str) -> list[Insight]:
        """Summarise several records, concurrently where a model is called, in their order."""
        return self.each(records, lambda r: self.observe(r, user_query))

    def each(self, records: Sequence[InteractionRecord], do: Callable[[InteractionRecord], T]) -> list[T]:
        """``do`` for several records, concurrently where a model is called, in their order."""
        workers = min(self.settings.observer_concurrency, len(records))
        if self.name == EXTRACTIVE or workers < 2:
            return [do(r) for r in records]
        with ThreadPoolExecutor(workers, thread_name_prefix="memory-bank-observer") as pool:
            return list(pool.map(do, records))

    def messages(self, record: InteractionRecord, user_query: str) -> list[dict[str, str]]:
        """The request for a summary. Raises PromptError."""
        arguments, output = _shortened(record, _ARGUMENT_CHARS, self.settings.observer_max_chars)
        values = {"user_query": _shortened_task(user_query), "tool_name": record.tool_name}
        values |= {"arguments": arguments or "(none)", "output": output or "(nothing)"}
        return fill_prompt(load_prompt("observer", self.settings.observer_prompt), values)


def _shortened(record: InteractionRecord, argument_chars: int, output_chars: int) -> tuple[str, str]:
    """The arguments and the output of a record as text."""
    value, text = readable_output(record)
    arguments = shorten(record.raw_input, argument_chars, text=record.input_text)
    return arguments.text, shorten(value, output_chars, text=text).text


def _shortened_task(task: str) -> str:
    return shorten(None, _TASK_CHARS, text=task).text or "(not known)"


def observe_tool_output(
    user_query: str,
    tool_name: str,
    raw_output: Any,
    llm_client: LLMClient | None,
    model: str,
    *,
    raw_input: Any = None,
) -> str:
    """The summary of one tool output.

    ``llm_client`` has ``generate_plain(input_messages=, model=)`` or is an ``openai.OpenAI`` client; None, or
    the model ``"extractive"``, summarises by extraction. An empty reply or a failing model gives an
    extractive summary and a WARNING.

    Example:
        >>> observe_tool_output("Find it", "get_order", {"due": "2026-03-01"}, model, "gpt-4.1-mini")
        'A summary.'
    """
    observer = Observer.create(llm_client, MemoryBankSettings(observer_model=model))
    record = InteractionRecord.create(0, tool_name, {} if raw_input is None else raw_input, raw_output)
    return observer.observe(record, user_query).summary


# Running summaries


def completion_of(llm_client: object, model: str, timeout: float | None = None) -> Complete | None:
    """How a client is asked, within ``timeout`` seconds; None for extraction. Raises ConfigError."""
    chat = None if model == EXTRACTIVE else as_chat_model(llm_client)
    return None if chat is None else lambda messages: reply_text(ask(chat, messages, model, timeout))


def extend_summary(
    complete: Complete, summary: str, calls: Sequence[str], task: str, words: int
) -> tuple[str | None, int]:
    """A summary of the old one and the calls, None with a WARNING on failure, and the number of requests."""
    blocks: list[list[str]] = [[]]
    for call in calls:
        if blocks[-1] and sum(map(len, blocks[-1])) + len(call) > _BLOCK_CHARS:
            blocks.append([])
        blocks[-1].append(call)
    for number, block in enumerate(blocks, 1):
        values = {"task": _shortened_task(task), "summary": summary or "(none yet)"}
        values |= {"calls": "\n\n".join(block), "words": str(words)}
        messages = fill_prompt(load_prompt("summary"), values)
        try:
            summary = complete(messages).strip()
        except Exception as e:  # a model may raise anything; the records are stored already
            log.warning("the summary's model failed with %s: an extractive one stands in", type(e).__name__)
            return None, number
        if not summary:
            log.warning("the summary's model answered nothing: an extractive summary stands in")
            return None, number
    return summary, len(blocks)


def describe_call(number: int, record: InteractionRecord, remark: str = "", chars: int = _CALL_CHARS) -> str:
    """A call as text for the model of a running summary or a note, with up to ``chars`` of its output."""
    arguments, output = _shortened(record, _CALL_ARGUMENT_CHARS, chars)
    words = f"\nThe agent said: {quote_lines(remark)}" if remark else ""
    call = f"#{number} {one_line(record.tool_name)}({quote_lines(arguments)})"
    return f"{call}{words}\n{quote_lines(output) or '(nothing)'}"
