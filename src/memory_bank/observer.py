"""One record to one summary: by a language model, or by extraction when there is none or it fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from memory_bank.clients.chat import as_chat_model, reply_text
from memory_bank.config import MemoryBankSettings
from memory_bank.extraction import extract_summary
from memory_bank.history.shortening import shorten
from memory_bank.ports import ChatModel
from memory_bank.prompts import fill_prompt, load_prompt
from memory_bank.records import Insight, InteractionRecord

log = logging.getLogger("memory_bank.Observer")

EXTRACTIVE = "extractive"
MAX_OUTPUT_CHARS = 10_000
_ARGUMENT_CHARS = 2_000
_TASK_CHARS = 4_000
_SUMMARY_CHARS = 4_000  # an answer far beyond 200 words is cut here


@dataclass(frozen=True)
class Observer:
    """How summaries are made. Without a chat model, or with model ``"extractive"``, by extraction."""

    chat: ChatModel | None = None
    model: str = EXTRACTIVE
    max_chars: int = MAX_OUTPUT_CHARS
    concurrency: int = 8
    prompt_path: str | None = None

    @classmethod
    def create(cls, llm_client: Any, settings: MemoryBankSettings) -> Observer:
        """The Observer that some settings ask for. Raises ConfigError for a client that cannot be used."""
        extractive = settings.observer_model == EXTRACTIVE
        return cls(
            chat=None if extractive else as_chat_model(llm_client),
            model=settings.observer_model,
            max_chars=settings.observer_max_chars,
            concurrency=settings.observer_concurrency,
            prompt_path=settings.observer_prompt,
        )

    @property
    def name(self) -> str:
        """What insights are labelled with: ``"extractive"`` or ``"llm:MODEL"``."""
        return EXTRACTIVE if self.chat is None or self.model == EXTRACTIVE else f"llm:{self.model}"

    def observe(self, record: InteractionRecord, user_query: str) -> Insight:
        """Summarise a record. A model that fails or says nothing leaves an extractive summary, marked."""
        if self.name == EXTRACTIVE or self.chat is None:
            return Insight(record.trace_id, extract_summary(record))
        messages = self._messages(record, user_query)
        try:
            summary = reply_text(self.chat.generate_plain(input_messages=messages, model=self.model)).strip()
            trouble = None if summary else "the model's reply was empty"
        except Exception as e:  # whatever a foreign model raises costs an insight, never a fact
            summary, trouble = "", f"the model failed with {type(e).__name__}"
        if trouble:
            log.warning(
                "%s for %s (%s): an extractive summary stands in, to be made again",
                trouble,
                record.tool_name,
                record.trace_id,
            )
            return Insight(record.trace_id, extract_summary(record), EXTRACTIVE, trouble)
        log.debug("observed %s (%s): %d characters", record.tool_name, record.trace_id, len(summary))
        return Insight(record.trace_id, summary[:_SUMMARY_CHARS], self.name)

    def observe_all(self, records: Sequence[InteractionRecord], user_query: str) -> list[Insight]:
        """Summarise several records, concurrently where a model is called, in their order."""
        if self.name == EXTRACTIVE or len(records) < 2 or self.concurrency < 2:
            return [self.observe(r, user_query) for r in records]
        workers = min(self.concurrency, len(records))
        with ThreadPoolExecutor(workers, thread_name_prefix="memory-bank-observer") as pool:
            return list(pool.map(lambda r: self.observe(r, user_query), records))

    def _messages(self, record: InteractionRecord, user_query: str) -> list[dict[str, str]]:
        output = shorten(record.raw_output, self.max_chars, text=record.output_text).text
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
    llm_client: Any,
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
