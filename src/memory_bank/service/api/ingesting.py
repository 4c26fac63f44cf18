"""Storing conversations, or tool outputs alone, without building a context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypedDict

from memory_bank.bank.ingestion import records_of
from memory_bank.records import InteractionRecord, content_key, derive_trace_id
from memory_bank.service.api.models import ToolOutput
from memory_bank.service.sessions import Sessions
from memory_bank.transcript.jsontext import dump_value, parse_output
from memory_bank.transcript.messages import Call
from memory_bank.transcript.tokens import approximate_counter
from memory_bank.transcript.transcript import Transcript


class Kept(TypedDict):
    """The response ``Ingested``: the trace_ids in the order of the request, and how many of them are new."""

    trace_ids: list[str]
    new: int


def keep_messages(
    sessions: Sessions,
    namespace: str | None,
    name: str,
    messages: Sequence[Any],
    *,
    agent_id: str | None = None,
) -> Kept:
    """Store the answered calls of a conversation, as a context built from it would.

    Raises ConfigError, MessagesError, EmbeddingError, StorageError.
    """
    seen = [sessions.redacted(m) for m in messages]
    with sessions.writing(namespace, name, agent_id=agent_id) as state:
        view = Transcript(state.session_id, approximate_counter()).update(seen)  # its tokens are not used
        ids = [t for interaction in view.interactions for t in interaction.trace_ids if t]
        records, _ = records_of(view.interactions, state.steps, state.step_count)
        return {"trace_ids": ids, "new": state.add(records, task=view.task)}


def keep_outputs(
    sessions: Sessions,
    namespace: str | None,
    name: str,
    outputs: Sequence[ToolOutput],
    *,
    task: str = "",
    agent_id: str | None = None,
    key: str | None = None,
) -> Kept:
    """Store tool outputs as one step.

    The same outputs again store nothing: a trace_id is made of call id, name, input, output and the ordinal
    among equals in the list. ``key`` tells equal outputs without a call id apart that come from different
    calls. Raises as ``keep_messages``, and RecordError for what no store can hold.
    """
    hidden = [_redacted(sessions, output) for output in outputs]
    if task:
        task = str(sessions.redacted({"role": "user", "content": task})["content"])
    with sessions.writing(namespace, name, agent_id=agent_id) as state:
        step = state.step_count + 1
        occurred: Counter[bytes] = Counter()
        brought = []
        for output in hidden:
            identity = _identity(output, key)
            brought.append(
                _record(output, derive_trace_id(state.session_id, identity, occurred[identity]), step)
            )
            occurred[identity] += 1
        return {"trace_ids": [r.trace_id for r in brought], "new": state.add(brought, task=task)}


def _redacted(sessions: Sessions, output: ToolOutput) -> ToolOutput:
    """The output as it may be stored, hidden in it what would be in the messages of its call."""
    function = {"name": output.tool_name, "arguments": output.raw_input}
    said: dict[str, Any] = {
        "role": "assistant",
        "tool_calls": [{"id": output.call_id, "type": "function", "function": function}],
    }
    came = {"role": "tool", "tool_call_id": output.call_id, "content": output.raw_output}
    said_, came_ = sessions.redacted(said), sessions.redacted(came)
    if said_ is said and came_ is came:
        return output
    call = said_["tool_calls"][0]["function"]
    hidden = {"tool_name": call["name"], "raw_input": call["arguments"], "raw_output": came_["content"]}
    return output.model_copy(update=hidden)


def _identity(output: ToolOutput, key: str | None) -> bytes:
    """As a call in a message list is identified, so that what comes both ways is stored once."""
    raw = output.raw_output
    text = raw if isinstance(raw, str) else dump_value(raw, "raw_output")
    parts = [output.call_id or "", output.tool_name, _call(output).text, text]
    if key is not None and output.call_id is None:
        parts.append(key)
    return content_key(*parts)


def _record(output: ToolOutput, trace_id: str, step: int) -> InteractionRecord:
    raw = output.raw_output
    is_text = isinstance(raw, str)
    return InteractionRecord(
        trace_id=trace_id,
        step_id=step,
        tool_name=output.tool_name,
        raw_input=_call(output).raw_input,
        raw_output=parse_output(raw) if is_text else raw,
        call_id=output.call_id,
        input_text=output.raw_input if isinstance(output.raw_input, str) else None,
        output_text=raw if is_text else None,
    )


def _call(output: ToolOutput) -> Call:
    return Call(output.call_id, output.tool_name, output.raw_input)
