"""Running summaries of blocks of past calls, by a language model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from memory_bank.models.chat import as_chat_model, ask, reply_text
from memory_bank.models.observer import EXTRACTIVE
from memory_bank.ports import ChatModel
from memory_bank.prompts import fill_prompt, load_prompt
from memory_bank.records import InteractionRecord
from memory_bank.transcript.messages import readable_output
from memory_bank.transcript.shortening import shorten

log = logging.getLogger("memory_bank.Observer")

_CALL_CHARS = 4_000  # of a call's output
_ARGUMENT_CHARS = 800
_BLOCK_CHARS = 60_000  # of all calls in one request
_TASK_CHARS = 4_000


@dataclass(frozen=True)
class Summarizer:
    """Writes running summaries; ``timeout`` in seconds."""

    chat: ChatModel
    model: str
    timeout: float | None = None

    @classmethod
    def create(cls, llm_client: object, model: str, timeout: float | None) -> Summarizer | None:
        """A summarizer; None without a client, or with the model ``"extractive"``.

        Raises ConfigError for a client that cannot be used.
        """
        if model == EXTRACTIVE:
            return None
        chat = as_chat_model(llm_client)
        return None if chat is None else cls(chat, model, timeout)

    def extend(self, summary: str, calls: Sequence[str], task: str, words: int) -> tuple[str | None, int]:
        """A new summary of the old one and the calls, and the number of requests that it took.

        The summary is None, with a WARNING, when the model fails.
        """
        blocks: list[list[str]] = [[]]
        for call in calls:
            if blocks[-1] and sum(map(len, blocks[-1])) + len(call) > _BLOCK_CHARS:
                blocks.append([])
            blocks[-1].append(call)
        for number, block in enumerate(blocks, 1):
            messages = fill_prompt(
                load_prompt("summary"),
                {
                    "task": shorten(None, _TASK_CHARS, text=task).text or "(not known)",
                    "summary": summary or "(none yet)",
                    "calls": "\n\n".join(block),
                    "words": str(words),
                },
            )
            try:
                summary = reply_text(ask(self.chat, messages, self.model, self.timeout)).strip()
            except Exception as e:  # a model may raise anything; the records are stored already
                log.warning(
                    "the summary's model failed with %s: an extractive one stands in", type(e).__name__
                )
                return None, number
            if not summary:
                log.warning("the summary's model answered nothing: an extractive summary stands in")
                return None, number
        return summary, len(blocks)


def call_line(number: int, record: InteractionRecord, note: str = "") -> str:
    """A call as the model is shown it."""
    arguments = shorten(record.raw_input, _ARGUMENT_CHARS, text=record.input_text).text
    value, text = readable_output(record)
    output = shorten(value, _CALL_CHARS, text=text).text
    said = f"\nThe agent said: {note}" if note else ""
    return f"#{number} {record.tool_name}({arguments}){said}\n{output or '(nothing)'}"
