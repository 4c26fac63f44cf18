"""A server of Gemini's API that signs the first call of each turn, and refuses a turn that comes back without it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

from memory_bank.testing import Reply, ScriptedServer, calls, fail, say

ROUNDS, WIDE = 12, 4
SMALL = {
    "memory_strategies": {
        "small": {
            "type": "memory_bank",
            "selection": "evidence",
            "layout": "native",
            "observer_model": "extractive",
            "embedding_model": "lexical",
            "history_budget": 2_500,
            "refresh_after": 0,
        }
    },
    "default_strategy": "small",
}
TASK = "Settle what is open."


def get_account(account: str) -> str:
    """An account with its open invoice.

    Args:
        account: the account's number.
    """
    return f"invoice_id: INV-{account[4:]}77\n" + f"history: nothing to tell of {account}\n" * 12


def settle(invoice_id: str) -> str:
    """Settle an invoice.

    Args:
        invoice_id: the invoice's number.
    """
    return f"settled: {invoice_id}"


def settling(text: str) -> Reply:
    """The next turn: accounts are read four at once, then the invoice of the last one is settled."""
    done = [int(n) for n in re.findall(r"settled: INV-(\d+)377", text)]
    number = max(done, default=-1) + 1
    if number == ROUNDS:
        return say("All is settled.")
    if f"INV-{number}377" in text:
        return calls(("settle", {"invoice_id": f"INV-{number}377"}))
    return calls(*(("get_account", {"account": f"ACC-{number}{k}"}) for k in range(WIDE)))


class GeminiServer(ScriptedServer):
    """``generateContent`` and ``streamGenerateContent`` of Gemini's API.

    ``unsigned``: turns that came back without their signature; ``parted``: turns that came back with a part of their calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unsigned: list[str] = []
        self.parted = 0
        self._turns: dict[
            str, tuple[str, int]
        ] = {}  # by signature the first call of a turn, and how many it has

    @property
    def address(self) -> str:
        """The address without a version."""
        return self.base_url.removesuffix("/v1")

    def answer(self, method: str, path: str, body: Any) -> Reply:
        if not re.search(r":(stream)?[gG]enerateContent$", path):
            return Reply(raw=json.dumps({"name": path.partition("/models/")[2]}))
        if errors := [*self._errors(body["contents"])]:
            self.refused += errors
            return fail(400, errors[0])
        reply = settling(json.dumps(body["contents"]))
        parts: list[dict[str, Any]] = [{"text": reply.content}] if reply.content else []
        for number, (name, arguments) in enumerate(reply.tool_calls):
            made = {"id": self._number("fc_"), "name": name, "args": arguments}
            part: dict[str, Any] = {"functionCall": made}
            if number == 0:
                signature = base64.b64encode(f"signature {len(self._turns)}".encode()).decode()
                self._turns[signature] = _call(part["functionCall"]), len(reply.tool_calls)
                part["thoughtSignature"] = signature
            parts.append(part)
        content = {"role": "model", "parts": parts}
        usage = {"promptTokenCount": len(json.dumps(body)) // 4, "candidatesTokenCount": 20}
        answer = {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage | {"totalTokenCount": sum(usage.values())},
            "modelVersion": "gemini-3",
        }
        text = json.dumps(answer)
        return Reply(raw=text if ":generate" in path else f"data: {text}\n\n")

    def render(self, reply: Reply, path: str, body: Any, size: int) -> tuple[str, list[bytes]]:
        kind, pieces = super().render(reply, path, body, size)
        return ("text/event-stream" if ":stream" in path else kind), pieces

    def _errors(self, contents: list[Any]) -> Iterator[str]:
        """What Gemini refuses: calls that the next content does not answer, turns without their signature."""
        for at, content in enumerate(contents):
            made = [part for part in content["parts"] if "functionCall" in part]
            if not made:
                continue
            after = contents[at + 1]["parts"] if at + 1 < len(contents) else []
            answered = [part["functionResponse"]["name"] for part in after if "functionResponse" in part]
            if answered != [part["functionCall"]["name"] for part in made]:
                yield f"contents.{at}: the number of function responses is not that of the function calls"
            first = _call(made[0]["functionCall"])
            signature = made[0].get("thoughtSignature", "").replace("-", "+").replace("_", "/")
            if self._turns.get(signature, ("", 0))[0] != first:
                self.unsigned.append(first)
                yield f"contents.{at}: Function call is missing a thought_signature in functionCall parts"
            else:
                self.parted += len(made) < self._turns[signature][1]


def _call(call: dict[str, Any]) -> str:
    return json.dumps([call["name"], call["args"]])
