"""A context that breaks a rule of the gate: the header, the page, the metric and /health name and count the rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.service.proxied import post, scripted
from tests.service.requests import PATHS, body_of
from tests.service.tasks import TOOLS, get_order

from memory_bank import MemoryProcessor
from memory_bank.context import gate
from memory_bank.plan import Choice
from memory_bank.testing import say
from memory_bank.transcript.turns import WHOLE, Edit

OUTPUTS = [get_order(n) for n in range(6)]
WORSE = f"the context would be worse than what came: {gate.EMPTY}"


def empties_a_result(view, _session):
    """A choice that breaks a rule: the output of the first call is empty."""
    at = next(n for n, m in enumerate(view.messages) if m["role"] == "tool")
    edit = Edit({WHOLE: ""}, {**view.messages[at], "content": ""}, 0)
    return Choice(keep_all=True, edits={at: edit}, may_cost_more=True)


def leaves_nothing_of_a_message(view, _session):
    """A choice that breaks another rule."""
    words = {"role": "assistant", "content": "I look."}
    at = next(n for n, m in enumerate(view.messages) if m == words)
    return Choice(keep_all=True, edits={at: Edit({WHOLE: None}, None, 0)}, may_cost_more=True)


class Broken(MemoryProcessor):
    """Applies a strategy that breaks a rule."""

    def __init__(self, choose, *args):
        super().__init__(*args)
        self.choose = choose

    def begin(self, key, *args):
        session, policy = super().begin("no_strategy", *args)
        return session, replace(policy, choose=self.choose)


@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_rule_that_a_strategy_breaks_is_named_and_counted(tmp_path, api, stream):
    with scripted([say("ok")] * 3, tmp_path, inject_tools=False, cache_markers="off") as (server, p):
        p.service.sessions.processor = Broken(empties_a_result, p.service.config)
        for count in (4, 5, 6):
            body = {"model": "m", **body_of(api, OUTPUTS[:count], TOOLS), "stream": stream}
            came = post(p.port, PATHS[api], body, b"x-memory-session: s")
            assert (came.status, came.header(b"x-memory-status")) == (200, b"unchanged")
            assert came.header(b"x-memory-reason").decode() == WORSE
            assert server.requests[-1].body == body
        p.told(3)
        assert p.service.recorder.drain(60)
        assert f'memory_bank_without_memory_total{{reason="{WORSE}"}} 3.0' in p.ask("/metrics").body.decode()
        assert p.ask("/v1/stats").json()["without_memory"] == {WORSE: 3}
        assert next(c for c in p.ask("/health").json()["parts"].values() if "without_memory" in c)[
            "without_memory"
        ] == {WORSE: 3}
        assert p.ask("/v1/stats").json()["steps_without_memory"] == 3
        [row] = p.ask("/v1/sessions?only=without_memory").json()["sessions"]
        assert row["without_memory"] == 3
        steps = p.ask("/v1/sessions/s/steps?only=without_memory").json()["steps"]
        assert [s["number"] for s in steps] == [1, 2, 3]
        step = p.ask("/v1/sessions/s/steps/1").json()
        assert WORSE in str(step)
        [warning] = [line for line in p.lines if "is not sent" in line]
    assert gate.EMPTY in warning
    assert "ORD" not in warning


@pytest.mark.parametrize(
    ("choose", "rule"), [(empties_a_result, gate.EMPTY), (leaves_nothing_of_a_message, gate.ENTRY)]
)
def test_the_plan_names_the_rule_in_the_library_and_in_the_api(tmp_path, choose, rule):
    chat = body_of("chat", OUTPUTS[:4], TOOLS)["messages"]
    chat[2:2] = [{"role": "assistant", "content": "I look."}, {"role": "user", "content": "Go on."}]
    made = Broken(choose)
    assert made.apply_strategy(chat)[0] == chat
    plan = made.state("no_strategy").last_plan
    assert (plan.unchanged, plan.rule, plan.why_unchanged) == (
        True,
        rule,
        f"{WORSE.partition(':')[0]}: {rule}",
    )
    with scripted([], tmp_path) as (_, p):
        p.service.sessions.processor = Broken(choose, p.service.config)
        built = p.ask("/v1/sessions/s/context", "POST", {"messages": chat}).json()
        assert built["messages"] == chat
        assert (
            f'memory_bank_without_memory_total{{reason="{plan.why_unchanged}"}} 1.0'
            in p.ask("/metrics").body.decode()
        )
