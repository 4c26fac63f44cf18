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

    def blocks(self, calls: Sequence[str]) -> list[list[str]]:
        """The calls grouped into as few requests as can hold them."""
        found: list[list[str]] = [[]]
        size = 0
        for call in calls:
            if found[-1] and size + len(call) > _BLOCK_CHARS:
                found.append([])
                size = 0
            found[-1].append(call)
            size += len(call)
        return found

    def extend(self, summary: str, calls: Sequence[str], task: str, words: int) -> str | None:
        """A new summary of the old one and the calls; None, with a WARNING, when the model fails."""
        messages = fill_prompt(
            load_prompt("summary"),
            {
                "task": shorten(None, _TASK_CHARS, text=task).text or "(not known)",
                "summary": summary or "(none yet)",
                "calls": "\n\n".join(calls),
                "words": str(words),
            },
        )
        try:
            text = reply_text(ask(self.chat, messages, self.model, self.timeout)).strip()
        except Exception as e:  # a model may raise anything; the records are stored already
            log.warning("the summary's model failed with %s: an extractive one stands in", type(e).__name__)
            return None
        if not text:
            log.warning("the summary's model answered nothing: an extractive summary stands in")
            return None
        return text


def call_line(number: int, record: InteractionRecord, note: str = "") -> str:
    """A call as the model is shown it."""
    arguments = shorten(record.raw_input, _ARGUMENT_CHARS, text=record.input_text).text
    value, text = readable_output(record)
    output = shorten(value, _CALL_CHARS, text=text).text
    said = f"\nThe agent said: {note}" if note else ""
    return f"#{number} {record.tool_name}({arguments}){said}\n{output or '(nothing)'}"
