"""What every context strategy must do. Import from tests only: it needs pytest."""

import functools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from memory_bank.transcript.pairing import pairing_errors
from memory_bank.transcript.tokens import open_counter
from tests.chats import parted
from tests.examples import first_short

Messages = list[dict[str, Any]]
Apply = Callable[[Messages], tuple[list[Any], int]]
Walked = tuple[Messages, Messages, list[Any], int]

SEEDS = first_short(range(6))


def recorded_run(seed, interactions=24):
    """A run with parallel calls, later user turns, failures, long and short outputs and odd text."""
    rng = random.Random(seed)
    messages = [{"role": "system", "content": "You are careful."}, _user("Refund the late orders")]
    for n in range(interactions):
        calls, results = [], []
        for k in range(rng.choice([1, 1, 1, 2, 3])):
            name = rng.choice(["get_order", "run_sql", "search"])
            call_id = f"call_{n}_{k}"
            arguments = json.dumps({"order_id": f"ORD-{rng.randrange(9000)}", "n": n})
            calls.append(
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            )
            results.append({"role": "tool", "tool_call_id": call_id, "content": _output(rng, n)})
        rng.shuffle(results)
        said = rng.choice([None, None, "Looking further."])
        messages += [{"role": "assistant", "content": said, "tool_calls": calls}, *results]
        if rng.random() < 0.15:
            messages += [{"role": "assistant", "content": "A question."}, _user(f"Answer number {n}")]
    return messages


def _user(text):
    return {"role": "user", "content": text}


def _output(rng, n):
    kind = rng.randrange(6)
    if kind == 0:
        return json.dumps({"error": f"not found: ORD-{n}"})
    if kind == 1:
        return "\n".join(
            f"line {i} of report {n}: <|endoftext|> \ud800 value_{rng.randrange(999)}" for i in range(60)
        )
    if kind == 2:
        return [{"type": "text", "text": f"part {n} " * 30}]
    rows = [{"id": f"ID-{n}-{i}", "amount": rng.randrange(10_000)} for i in range(rng.choice([1, 5, 60]))]
    return json.dumps(rows)


class StrategyContract:
    """Subclass it and override ``make_strategy``, and ``budget`` where the strategy has one.

    A strategy is a function from messages to ``(context, tokens)`` that keeps its state between calls.
    """

    def make_strategy(self):
        """A strategy in a new session."""
        raise NotImplementedError

    def budget(self, messages):
        """How many tokens a context of these messages may have; None: no limit."""
        return

    def _walked(self, seed):
        contract: Any = type(self)
        return _walk(contract, seed)

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_input_is_never_changed(self, seed):
        for prefix, before, _, _ in self._walked(seed):
            assert prefix == before

    @pytest.mark.parametrize("seed", SEEDS)
    def test_pairs_stay_whole_and_tokens_are_counted(self, seed):
        for _, _, context, tokens in self._walked(seed):
            assert pairing_errors(context) == []
            assert tokens == sum(map(open_counter().count_message, context))

    @pytest.mark.parametrize("seed", SEEDS)
    def test_what_system_and_user_said_is_there_in_order(self, seed):
        for prefix, _, context, _ in self._walked(seed):
            said = [m for m in prefix if m["role"] in ("system", "user")]
            assert [m for m in parted(context) if m in said] == said

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_last_interaction_stays_as_it_is(self, seed):
        apply, messages = self.make_strategy(), recorded_run(seed)
        context, _ = apply(messages)
        last = max(i for i, m in enumerate(messages) if m["role"] == "assistant" and m.get("tool_calls"))
        assert context[len(context) - (len(messages) - last) :] == messages[last:]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_same_run_gives_the_same_contexts(self, seed):
        messages, others = recorded_run(seed), recorded_run(seed)
        one, two = self.make_strategy(), self.make_strategy()
        for i in _turns(messages):
            first = one(messages[:i])
            assert first == two(others[:i])
            assert one(messages[:i]) == first

    @pytest.mark.parametrize("seed", SEEDS)
    def test_without_history_nothing_changes(self, seed):
        apply, messages = self.make_strategy(), recorded_run(seed, 1)
        assert apply([])[0] == []
        assert apply(messages[:2])[0] == messages[:2]
        stop = next((i for i in range(3, len(messages)) if messages[i]["role"] != "tool"), len(messages))
        assert apply(messages[:stop])[0] == messages[:stop]

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_budget_holds_but_for_what_must_be_kept(self, seed):
        count = open_counter().count_message
        for prefix, _, context, tokens in self._walked(seed):
            allowed = self.budget(prefix)
            if allowed is not None and tokens > allowed:
                kept = [m for m in context if m in prefix]
                assert tokens == sum(map(count, kept)), "the context holds more than what must be kept"
                assert sum(1 for m in context if m.get("tool_calls")) <= 1

    def test_a_run_that_forks_and_one_that_loses_its_beginning_go_through(self):
        apply, messages = self.make_strategy(), recorded_run(1)
        other = recorded_run(2)
        stops = _turns(messages)
        for prefix in (
            messages,
            messages[: stops[6]],
            [*messages[: stops[6]], *other[2:]],
            [*messages[:2], *messages[stops[9] :]],
            messages,
        ):
            context, _ = apply(list(prefix))
            assert pairing_errors(context) == []


@functools.lru_cache(maxsize=len(SEEDS))  # walked once for all tests of a strategy
def _walk(contract, seed):
    """A long run, step by step: what was given, what it was before, and the context with its tokens."""
    apply, messages, as_made = contract().make_strategy(), recorded_run(seed, 60), recorded_run(seed, 60)
    steps = []
    for i in _turns(messages):
        prefix = messages[:i]
        steps.append((prefix, as_made[:i], *apply(prefix)))
    return steps


def _turns(messages):
    """Before every assistant turn, and at the end."""
    return [i for i, m in enumerate(messages) if m["role"] == "assistant"] + [len(messages)]
