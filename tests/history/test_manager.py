"""The manager: order, counts, caches, callbacks, files, replay, page; each step is worked on once."""

import base64
import io
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.chats import good_chats
from tests.examples import examples
from tests.history.test_steps import PNG, STEPS

from memory_bank import MemoryBankState
from memory_bank.context.gate import broken_rule
from memory_bank.errors import HistoryError, ImageError, StepFileError, StepOrderError
from memory_bank.history import (
    ActionStep,
    AdaptiveMemoryManager,
    AgentMemory,
    FinalAnswerStep,
    HierarchicalMemory,
    MemoryManager,
    PlanningStep,
    ScratchpadStep,
    Step,
    SystemPromptStep,
    TaskStep,
    ToolCall,
    chain,
    keep_last_n_steps,
    no_pruning,
    prune_old_observations,
    summarize_old_steps,
    to_memory_bank,
)
from memory_bank.transcript.tokens import MessageCounter


def action(i: int = 1, size: int = 10) -> ActionStep:
    return ActionStep("think", [ToolCall("get_order", {"n": i}, f"c{i}")], [f"ORD-{i} " + "x" * size])


def history(n: int = 3, **options) -> MemoryManager:
    manager = MemoryManager("be careful", **options)
    manager.add(TaskStep("find the order"))
    for i in range(n):
        manager.add(action(i))
    return manager


def test_steps_are_numbered_and_found_by_type():
    manager = history(3)
    manager.add(PlanningStep("go on"))
    manager.add(FinalAnswerStep("done"))
    assert [s.step_number for s in manager] == [0, 0, 1, 2, 3, 3, 3]
    assert manager.action_count == 3 == len(manager.get_steps_by_type(ActionStep))
    assert len(manager.get_steps_by_type(Step)) == len(manager) == 7
    manager.reset()
    assert [type(s) for s in manager] == [SystemPromptStep]
    manager.clear()
    assert len(manager) == 0 == manager.token_count == manager.action_count


def test_a_step_out_of_order_is_refused_and_nothing_lost():
    manager = history(3)
    before = manager.steps
    with pytest.raises(StepOrderError, match="step 1 came after step 3"):
        manager.add(ActionStep(step_number=1))
    with pytest.raises(HistoryError, match="add a step"):
        manager.add({"role": "user"})
    assert manager.steps == before


class Counting(ActionStep):
    """An action that counts how often it is rendered."""

    rendered = 0

    def to_messages(self, summary_mode=False, *, wire="tools"):
        Counting.rendered += 1
        return super().to_messages(summary_mode, wire=wire)


def test_each_of_many_steps_is_rendered_and_counted_once():
    counted = []
    counter = MessageCounter("words", True, lambda text: counted.append(text) or len(text.split()))
    manager = MemoryManager(counter=counter, max_steps_before_prune=10_000)
    Counting.rendered = 0
    for i in range(500):
        manager.add(Counting("think", [ToolCall("f", {"n": i})], ["seen"]))
        assert len(manager.to_messages()) == 2 * (i + 1)
        assert manager.token_count > 0
    assert Counting.rendered == 500
    assert len(counted) == 4 * 500  # thought, name, arguments, observation


def test_messages_handed_out_change_nothing():
    manager = history()
    messages = manager.to_messages()
    messages.clear()
    manager.to_messages()[0]["content"] = "other"
    assert manager.to_messages()[0]["content"] == "be careful"
    assert json.loads(json.dumps(manager.to_messages())) == manager.to_messages()


def test_pruning_runs_when_due_and_where_it_raises_nothing_changes():
    manager = MemoryManager("s", keep_last_n_steps(4), max_steps_before_prune=10)
    runs = []
    other = MemoryManager("s", lambda steps: runs.append(1) or no_pruning(steps), 10)
    for i in range(100):
        manager.add(action(i))
        other.add(action(i))
        assert len(manager) <= 11
    assert manager.steps[-1].tool_calls[0].id == "c99"
    assert len(runs) <= 10
    before = manager.steps
    with pytest.raises(HistoryError, match="list of steps"):
        manager.prune(lambda steps: 7)
    assert manager.steps == before


def test_a_pruning_is_logged_without_contents(caplog):
    manager = history(8)
    with caplog.at_level(logging.DEBUG, logger="memory_bank.History"):
        manager.prune(prune_old_observations(keep_last_n=3, max_length=5))
        manager.prune(chain(keep_last_n_steps(4)))
        manager.prune(no_pruning())
        AdaptiveMemoryManager(10_000).prune()
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [
        (logging.DEBUG, f"pruned by {line} left")
        for line in (
            "prune_old_observations: 5 of 10 steps removed or replaced, 10",
            "chain: 4 of 10 steps removed or replaced, 6",
            "no_pruning: 0 of 6 steps removed or replaced, 6",
            "AdaptiveMemoryManager._prune_mildly: 0 of 0 steps removed or replaced, 0",
        )
    ]


def test_a_manager_without_a_pruning_says_that_nothing_is_pruned(caplog):
    with caplog.at_level(logging.WARNING, logger="memory_bank"):
        history(5, max_steps_before_prune=6)
        history(50, prune_strategy=keep_last_n_steps(2), max_steps_before_prune=6)
        AdaptiveMemoryManager(10_000, max_steps_before_prune=1).extend([action(1), action(2)])
        HierarchicalMemory(MemoryBankState("lexical"), max_steps_before_prune=1).extend(
            [action(1), action(2)]
        )
        assert caplog.records == []
        manager = history(50, max_steps_before_prune=6)
    assert [r.getMessage() for r in caplog.records] == [
        "a history has more than 6 steps and no prune_strategy: nothing is pruned"
    ]
    assert len(manager) == 52


def test_steps_that_are_assigned_are_the_history_and_wrong_ones_change_nothing():
    heard = []
    manager = history(5, callbacks={Step: heard.append})
    tokens, n = manager.token_count, len(heard)
    manager.steps = [s for s in manager.steps if s.step_number != 2]
    assert [s.step_number for s in manager] == [0, 0, 1, 3, 4, 5] and manager.action_count == 4
    assert manager.token_count < tokens and "ORD-1 " not in str(manager.to_messages()) and len(heard) == n
    before = manager.steps
    for wrong, error in ((reversed(before), StepOrderError), ([*before, "x"], HistoryError)):
        with pytest.raises(error):
            manager.steps = wrong
    with pytest.raises(StepOrderError):
        manager.prune(lambda steps: list(reversed(steps)))
    assert manager.steps == before
    assert manager.add(action(9)).step_number == 6


@pytest.mark.parametrize("n", [0, -1, True, 2.5, None])
def test_a_limit_that_is_none_is_refused(n):
    with pytest.raises(HistoryError, match="at least 1"):
        MemoryManager(max_steps_before_prune=n)


def test_step_callbacks_are_those_of_smolagents():
    heard = []

    def with_agent(step, agent):
        heard.append((step.step_number, agent))

    manager = MemoryManager(
        "s", callbacks={ActionStep: heard.append}, step_callbacks=[with_agent], agent="the agent"
    )
    manager.on(Step, lambda step: heard.append(step.step_number))
    manager.add(TaskStep("t"))
    step = manager.add(action())
    assert heard == [0, step, (1, "the agent"), 1]
    by_class = MemoryManager(
        step_callbacks={TaskStep: [with_agent], Step: lambda step, agent=None: heard.append(agent)}
    )
    by_class.agent = by_class
    by_class.add(TaskStep("t"))
    assert heard[4:] == [(0, by_class), by_class]
    for wrong in (7, [7], {ActionStep: [7]}, {"action": print}):
        with pytest.raises(HistoryError, match=r"on\(ActionStep, function\)"):
            MemoryManager(step_callbacks=wrong)
    with pytest.raises(HistoryError, match="callback"):
        manager.on(dict, print)


@given(STEPS)
def test_save_and_load_are_an_identity(tmp_path_factory, steps):
    manager = MemoryManager("s\ud800", wire="text")
    manager.extend(steps)
    path = tmp_path_factory.getbasetemp() / "run.jsonl"
    manager.save(path)
    loaded = MemoryManager.load(path)
    assert json.dumps(loaded.full_steps()) == json.dumps(manager.full_steps())
    assert loaded.wire == "text"


@given(good_chats())
def test_a_conversation_is_read_and_given_back(messages):
    manager = MemoryManager.from_messages(messages)
    assert manager.to_messages() == messages


def test_a_damaged_file_is_one_error_with_the_steps_before_it(tmp_path):
    path = tmp_path / "run.jsonl"
    history(3).save(path)
    lines = path.read_text().splitlines(keepends=True)
    for damaged, what, kept in (
        ("".join(lines)[:-20], "line 6 is cut in the middle", 4),
        ("".join(lines[:4]), "line 4 is the last, with 3 steps where the first line says 5", 3),
        ("".join([*lines[:3], '{"type": "dream"}\n', *lines[3:]]), "line 4 is not a step .*'dream'", 2),
        ("".join([*lines[:3], "nonsense\n", *lines[3:]]), "line 4 is not JSON", 2),
        ("".join([lines[0], lines[5], lines[2]]), "line 3 holds step 0 after step 3", 1),
    ):
        path.write_text(damaged)
        with pytest.raises(StepFileError, match=what) as e:
            MemoryManager.load(path)
        assert len(e.value.steps) == kept
        assert path.read_text() == damaged
        assert len(MemoryManager.load(path, recover=True)) == kept
    for bad in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(StepFileError, match="cannot be read"):
            MemoryManager.load(bad, recover=True)
        with pytest.raises(StepFileError, match="cannot be written"):
            history().save(bad / "deeper" / "x.jsonl")
    assert issubclass(ImageError, HistoryError) and issubclass(StepFileError, ValueError)


def test_steps_as_dicts_full_and_succinct():
    manager = MemoryManager("s")
    manager.add(ActionStep("t", model_input_messages=[{"role": "user", "content": "x"}]))
    assert manager.full_steps()[1]["model_input_messages"] == [{"role": "user", "content": "x"}]
    assert set(manager.succinct_steps()[1]) == {"type", "step_number", "timestamp", "thought", "is_final"}


def test_a_replay_shows_every_step_and_steers_no_terminal():
    manager = history(2)
    seen = [{"role": "user", "content": "seen by it"}]
    manager.add(ActionStep("red [bold]\x1b[31m", error="it broke \ud800", model_input_messages=seen))
    manager.add(ScratchpadStep("y" * 3_000))
    for detailed in (False, True):
        out = io.StringIO()
        manager.replay(Console(file=out, width=100), detailed=detailed)
        text = out.getvalue()
        assert "find the order" in text and "ORD-1" in text and "it broke" in text and "[bold]" in text
        assert "\x1b" not in text
        assert ("seen by it" in text) is detailed
        assert (text.count("y") > 3_000) is detailed


def test_the_page_is_self_contained_and_escaped(tmp_path):
    manager = history(2)
    manager.add(TaskStep("<script>alert(1)</script>\ud800", [PNG, "https://example.org/a.png"]))
    html = manager.visualize(tmp_path / "run.html")
    assert "<script" not in html and "&lt;script&gt;" in html
    assert 'src="http' not in html and "href" not in html and "data:image/png;base64" in html
    assert html.count("<details") == len(manager)
    assert (tmp_path / "run.html").read_text() == html


def test_the_scratchpad_is_bounded_and_comes_back_from_json():
    pad = AgentMemory(max_items=2, max_observations=6, max_failures=4, max_chars=50)
    for i in range(8):
        pad.store(f"k{i}", {"n": [i]})
        pad.observe(f"saw {i}")
        pad.fail(ValueError(f"no {i}"))
    assert pad.keys == ["k6", "k7"] and pad.recall("k7") == {"n": [7]} and pad.recall("k0", 5) == 5
    assert pad.observations == [f"saw {i}" for i in range(2, 8)] and len(pad.failures) == 4
    context = pad.to_context()
    assert "saw 3" in context and "saw 2" not in context
    assert "no 5" in context and "no 4" not in context
    pad.observe("word " * 100)
    assert len(pad.observations[-1]) <= 50
    again = AgentMemory.from_json(pad.to_json())
    assert again.to_json() == pad.to_json() and again.limits == pad.limits
    namespace = {}
    pad.inject(namespace)
    pad.inject(namespace)
    exec("memory.store('found', [1]); x = memory.recall('found')", namespace)
    assert namespace["x"] == [1]
    pad.recall("found").append(2)
    assert pad.recall("found") == [1]
    pad.clear()
    assert pad.to_context() == ""


@pytest.mark.parametrize(
    "bad",
    [
        lambda: AgentMemory(max_items=0),
        lambda: AgentMemory(max_failures=-1),
        lambda: AgentMemory().store("", 1),
        lambda: AgentMemory().store("x", AgentMemory()),
        lambda: AgentMemory.from_json("[]"),
        lambda: AgentMemory.from_json("{"),
        lambda: AgentMemory().inject({"memory": 7}),
    ],
)
def test_what_the_scratchpad_cannot_take_is_one_clear_error(bad):
    with pytest.raises(HistoryError):
        bad()


def test_what_the_pad_does_not_keep_is_said():
    pad = AgentMemory(max_chars=30)
    knot = []
    knot.append(knot)
    for value, said in (
        ({"a": [re.compile("a")]}, r"'x' cannot be stored: .* holds a Pattern: pass JSON values only"),
        ({"late"}, "holds a set: pass JSON"),
        ({7: "late"}, "a key that is no text"),
        ("y" * 31, r"at most 30 \(max_chars\)"),
        (knot, "contains itself"),
    ):
        with pytest.raises(HistoryError, match=said):
            pad.store("x", value)
    assert pad.keys == []


def test_json_comes_back_as_it_was_and_a_tuple_as_a_list():
    pad = AgentMemory()
    value = {"a": [1, 2.5, None, "x", True], "$type": "set", "\ud800": "\0"}
    pad.store("v", value)
    pad.store("pair", ("ORD-7", 1))
    again = AgentMemory.from_json(json.dumps(json.loads(pad.to_json())))
    for each in (pad, again):
        assert each.recall("v") == value and each.recall("pair") == ["ORD-7", 1]
    assert again.to_json() == pad.to_json() and again.to_context() == pad.to_context()


# the gate


def spoken(messages):
    return [
        m["role"]
        for m in messages
        if m["role"] == "user" or (m["role"] == "assistant" and not m.get("tool_calls"))
    ]


def two_tasks(**options) -> MemoryManager:
    manager = history(6, **options)
    manager.add(FinalAnswerStep("found"))
    manager.add(TaskStep("now another"))
    manager.extend(action(i) for i in range(6, 12))
    return manager


@pytest.mark.parametrize("make", [
    lambda s: keep_last_n_steps(2), lambda s: summarize_old_steps(keep_last_n=2),
    lambda s: to_memory_bank(s, keep_last_n_steps(2)), lambda s: chain(summarize_old_steps(keep_last_n=2), keep_last_n_steps(3)),
])  # fmt: skip
def test_users_messages_that_a_pruning_brings_together_are_one(make, tmp_path):
    """The templates of Mistral and Gemma refuse two in a row."""
    with MemoryBankState("lexical") as state:
        manager = two_tasks()
        before = manager.to_messages()
        manager.prune(make(state))
        after = manager.to_messages()
        assert len(after) < len(before)
        assert broken_rule(after, before) == ""
        assert spoken(before) == ["user", "assistant", "user"] and spoken(after) in (
            ["user"],
            ["user", "assistant", "user"],
        )
        assert "find the order" in str(after) and "now another" in str(after)
        assert manager.token_count == sum(map(manager.counter.count_message, after))
        manager.save(tmp_path / "steps")
        assert MemoryManager.load(tmp_path / "steps").to_messages() == after
        manager.add(action(20))
        assert manager.to_messages()[: len(after)] == after


def test_notes_of_a_hierarchy_stand_with_the_task():
    with MemoryBankState("lexical") as state:
        memory = HierarchicalMemory(state, "be careful", recent=3, summarized=4)
        memory.add(TaskStep("find the order", ["data:image/png;base64," + base64.b64encode(PNG).decode()]))
        memory.extend(action(i) for i in range(20))
        assert [m["role"] for m in memory.to_messages()][:3] == ["system", "user", "assistant"]
        kinds = [part["type"] for part in memory.to_messages()[1]["content"]]
        assert kinds == ["text", "image_url", "text", "text"]


def test_a_pruning_that_would_make_the_messages_worse_changes_nothing_and_says_why(caplog):
    worse = {
        "the last message is not last": lambda steps: list(steps)[:-1],
        "the system message is not first": lambda steps: list(steps)[1:],
        "a content is empty": lambda steps: [*steps[:-1], FinalAnswerStep("", step_number=6), steps[-1]],
    }
    for rule, pruning in worse.items():
        manager = history(6)
        before = manager.to_messages()
        manager.prune(pruning)
        manager.prune(pruning)
        assert manager.to_messages() == before
        [warning] = [r.getMessage() for r in caplog.records if r.getMessage().endswith(rule)]
        assert "order" not in warning


@examples(60)
@given(STEPS, st.integers(1, 4), st.sampled_from(["tools", "text"]))
def test_no_pruning_makes_the_messages_worse(steps, n, wire):
    for pruning in (
        keep_last_n_steps(n),
        summarize_old_steps(keep_last_n=n),
        prune_old_observations(keep_last_n=n),
    ):
        manager = MemoryManager("be careful", wire=wire)
        manager.add(TaskStep("find the order"))
        for step in steps:
            manager.add(step)
            before = manager.to_messages()
            manager.prune(pruning)
            assert broken_rule(manager.to_messages(), before) == ""
