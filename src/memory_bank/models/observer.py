"""The Observer: summarises one record by a language model, or by extraction without one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from memory_bank.config import MemoryBankSettings, ObserverBudget, Price
from memory_bank.errors import ConfigError, MemoryBankError
from memory_bank.models.chat import as_chat_model, ask, failure_of, reply_text, usage_of
from memory_bank.models.extraction import extract_summary
from memory_bank.ports import ChatModel
from memory_bank.pricing import Usage, cost, price_of
from memory_bank.prompts import fill_prompt, load_prompt
from memory_bank.records import Insight, InteractionRecord, Spent
from memory_bank.transcript.messages import readable_output
from memory_bank.transcript.shortening import shorten
from memory_bank.transcript.tokens import approximate_counter

log = logging.getLogger("memory_bank.Observer")

EXTRACTIVE = "extractive"
MAX_OUTPUT_CHARS = 10_000
_ARGUMENT_CHARS = 2_000
_TASK_CHARS = 4_000
_SUMMARY_CHARS = 4_000  # an answer far beyond 200 words is cut here
_SUMMARY_TOKENS = 500  # what an answer is expected to take at most, before it is there

T = TypeVar("T")


class Account(Protocol):
    """Where calls are booked before they are made, so that limits hold."""

    def reserve(self, model: str, expected: Spent, limits: ObserverBudget) -> str | None:
        """Book a call and return None, or return the reason why a limit forbids it, without booking it."""

    def settle(self, model: str, expected: Spent, actual: Spent) -> None:
        """Replace the expected cost of a booked call by the actual one."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why there is no summary by the model. ``again``: another attempt may succeed."""

    reason: str
    again: bool


@dataclass(frozen=True)
class Observer:
    """Makes summaries; by extraction without a chat model, or with the model ``"extractive"``.

    ``timeout``: seconds after which a call is given up. Outputs of fewer than ``min_chars`` characters are
    never sent. ``account`` is asked before every call whether ``budget`` allows it.
    """

    chat: ChatModel | None = None
    model: str = EXTRACTIVE
    max_chars: int = MAX_OUTPUT_CHARS
    concurrency: int = 8
    prompt_path: str | None = None
    timeout: float | None = None
    min_chars: int = 0
    budget: ObserverBudget = field(default_factory=ObserverBudget)
    price: Price | None = None
    account: Account | None = None
    told: dict[str, object] = field(default_factory=dict, compare=False)  # reasons logged as a warning

    @classmethod
    def create(
        cls,
        llm_client: object,
        settings: MemoryBankSettings,
        account: Account | None = None,
        told: dict[str, object] | None = None,
    ) -> Observer:
        """The Observer of some settings. ``told``: the reasons of failures that need no further warning.

        Raises ConfigError for a client that cannot be used, and for a limit on the cost without a price.
        """
        extractive = settings.observer_model == EXTRACTIVE
        price = price_of(settings.observer_prices, settings.observer_model)
        limited = (settings.observer_budget.cost_per_session, settings.observer_budget.cost_per_day)
        if price is None and not extractive and limited != (None, None):
            raise ConfigError(
                f"observer_budget limits the cost, but observer_prices has no price for "
                f"{settings.observer_model!r}: add one, or limit calls or tokens."
            )
        return cls(
            chat=None if extractive else as_chat_model(llm_client),
            model=settings.observer_model,
            max_chars=settings.observer_max_chars,
            concurrency=settings.observer_concurrency,
            prompt_path=settings.observer_prompt,
            timeout=settings.observer_timeout,
            min_chars=settings.observer_min_chars,
            budget=settings.observer_budget,
            price=price,
            account=account,
            told={} if told is None else told,
        )

    @property
    def name(self) -> str:
        """The source of its insights: ``"extractive"`` or ``"llm:MODEL"``."""
        return EXTRACTIVE if self.chat is None or self.model == EXTRACTIVE else f"llm:{self.model}"

    def sends(self, record: InteractionRecord) -> bool:
        """Whether a record is sent to the model: there is one, and the output is not too short."""
        if self.name == EXTRACTIVE or not self.min_chars:
            return self.name != EXTRACTIVE
        text = readable_output(record)[1] if record.output_text is None else record.output_text
        return len(text) >= self.min_chars

    def extract(self, record: InteractionRecord, trouble: str | None = None) -> Insight:
        """A summary without a model; ``trouble``, a reason, marks it to be made again."""
        return Insight(record.trace_id, extract_summary(record), EXTRACTIVE, trouble)

    def ask(self, record: InteractionRecord, user_query: str) -> Insight | Trouble:
        """A summary by the model, or the reason why there is none; books the call."""
        assert self.chat is not None, "only records that are sent are asked about"
        messages = self.messages(record, user_query)
        expected = self._priced(sum(map(approximate_counter().count_message, messages)), _SUMMARY_TOKENS)
        if self.account is not None:
            refused = self.account.reserve(self.model, expected, self.budget)
            if refused:
                return Trouble(refused, again=False)
        try:
            answer = ask(self.chat, messages, self.model, self.timeout)
            summary = reply_text(answer).strip()
        except TimeoutError:  # its cost is unknown: it stays booked as expected
            return Trouble(f"the model did not answer within {self.timeout:g} s", again=True)
        except Exception as e:  # a model may raise anything; the record is stored already
            self._settle(expected, Spent(calls=1))
            return Trouble(failure_of(e), again=True)
        prompt, completion = usage_of(answer)
        if not prompt and not completion:  # the model did not report them
            prompt, completion = expected.prompt_tokens, approximate_counter().count_text(summary)
        self._settle(expected, self._priced(prompt, completion))
        if not summary:
            return Trouble("the model's reply was empty", again=True)
        log.debug("observed %s (%s): %d characters", record.tool_name, record.trace_id, len(summary))
        return Insight(record.trace_id, summary[:_SUMMARY_CHARS], self.name)

    def observe(self, record: InteractionRecord, user_query: str) -> Insight:
        """Summarise a record; by extraction, marked to be made again, where the model fails."""
        if not self.sends(record):
            return self.extract(record)
        answer = self.ask(record, user_query)
        if isinstance(answer, Insight):
            return answer
        self.warn(answer.reason, record, "extractive summaries stand in, to be made again")
        return self.extract(record, answer.reason)

    def warn(self, reason: str, record: InteractionRecord, outcome: str) -> None:
        """Log why a record has no summary by the model: as a warning once for each reason, else for debugging."""
        first = object()  # of several threads one sets it
        level = logging.WARNING if self.told.setdefault(reason, first) is first else logging.DEBUG
        log.log(level, "no summary of %s (%s): %s; %s", record.tool_name, record.trace_id, reason, outcome)

    def observe_all(self, records: Sequence[InteractionRecord], user_query: str) -> list[Insight]:
        """Summarise several records, concurrently where a model is called, in their order."""
        return self.each(records, lambda r: self.observe(r, user_query))

    def each(self, records: Sequence[InteractionRecord], do: Callable[[InteractionRecord], T]) -> list[T]:
        """``do`` for several records, concurrently where a model is called, in their order."""
        if self.name == EXTRACTIVE or len(records) < 2 or self.concurrency < 2:
            return [do(r) for r in records]
        workers = min(self.concurrency, len(records))
        with ThreadPoolExecutor(workers, thread_name_prefix="memory-bank-observer") as pool:
            return list(pool.map(do, records))

    def _priced(self, prompt: int, completion: int) -> Spent:
        charged = cost(Usage(prompt, output=completion), self.price) if self.price else 0.0
        return Spent(1, prompt, completion, charged)

    def _settle(self, expected: Spent, actual: Spent) -> None:
        if self.account is None:
            return
        try:
            self.account.settle(self.model, expected, actual)
        except MemoryBankError as e:  # the summary is kept, booked at its expected cost
            log.warning("a call stays booked at its expected cost: %s", e)

    def messages(self, record: InteractionRecord, user_query: str) -> list[dict[str, str]]:
        """The request for a summary. Raises PromptError."""
        value, text = readable_output(record)
        output = shorten(value, self.max_chars, text=text).text
        arguments = shorten(record.raw_input, _ARGUMENT_CHARS, text=record.input_text).text
        template = load_prompt("observer", self.prompt_path)
        return fill_prompt(
            template,
            {
                "user_query": shorten(None, _TASK_CHARS, text=user_query).text or "(not known)",
                "tool_name": record.tool_name,
                "arguments": arguments or "(none)",
                "output": output or "(nothing)",
            },
        )


def observe_tool_output(
    user_query: str,
    tool_name: str,
    raw_output: Any,
    llm_client: object,
    model: str,
    *,
    raw_input: Any = None,
) -> str:
    """The summary of one tool output.

    ``llm_client`` has ``generate_plain(input_messages=, model=)`` or is an ``openai.OpenAI`` client; None, or
    the model ``"extractive"``, summarises by extraction. An empty reply or a failing model gives an
    extractive summary and a WARNING.
    """
    observer = Observer(None if model == EXTRACTIVE else as_chat_model(llm_client), model)
    record = InteractionRecord.create(0, tool_name, {} if raw_input is None else raw_input, raw_output)
    return observer.observe(record, user_query).summary
