"""The strict check that the Responses API makes on its input: calls answered, reasoning with its item."""

from __future__ import annotations

from collections import Counter
from typing import Any

from memory_bank.transcript.items import CALL_OF, OUTPUT_OF, call_id_of, is_by_client, item_type


def item_errors(items: Any) -> list[str]:
    """What is wrong with the pairs in a list of input items, in the provider's words; empty when nothing is.

    - Every output answers a call that stands before it, and every call but an asynchronous one or a
      program has its output behind it; an id that several calls share has as many outputs.
    - A reasoning item is followed by what it led to: more reasoning, or an item of the model's.
    - No two items have the same ``id``; a call's output and an ``item_reference`` may name it again.

    Takes linear time, and never raises, whatever it is given.
    """
    if not isinstance(items, (list, tuple)):
        return [f"Invalid type for 'input': expected an array, but got {type(items).__name__}."]
    errors: list[str] = []
    unanswered: Counter[tuple[str, str]] = Counter()
    patient: set[tuple[str, str]] = set()  # may be answered in a later request
    ids: set[str] = set()
    reasoning = ""
    for i, item in enumerate(items):
        kind = item_type(item)
        if not kind:
            errors.append(f"Invalid value for 'input[{i}]': expected an item with a type or a role.")
            continue
        if reasoning and is_by_client(item):
            errors.append(_alone(reasoning))
        reasoning = _shown(item.get("id")) if kind == "reasoning" else ""
        if kind in OUTPUT_OF:
            key = (kind, _shown(call_id_of(item)))
            unanswered[key] += 1
            if kind == "program" or item.get("async") is True:
                patient.add(key)
        elif kind in CALL_OF:
            key = (CALL_OF[kind], _shown(call_id_of(item)))
            if unanswered[key] < 1:
                errors.append(f"No tool call found for {_words(key[0])} output with call_id {key[1]}.")
            else:
                unanswered[key] -= 1
        _check_id(item, kind, ids, errors)
    if reasoning:
        errors.append(_alone(reasoning))
    for key, calls in unanswered.items():
        if calls and key not in patient:
            errors.append(f"No tool output found for {_words(key[0])} {key[1]}.")
    return errors


def _check_id(item: dict[str, Any], kind: str, ids: set[str], errors: list[str]) -> None:
    own = item.get("id")
    if not isinstance(own, str) or kind in ("item_reference", "local_shell_call_output"):
        return
    if own in ids:
        errors.append(
            f"Duplicate item found with id {own}. Remove duplicate items from your input and try again."
        )
    ids.add(own)


def _alone(reasoning: str) -> str:
    return f"Item '{reasoning}' of type 'reasoning' was provided without its required following item."


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else "None"
