"""The evidence of the room's own trace, worked out by hand.

The trace ``orders`` (positions in brackets): [2] find_customer → [3] customer as JSON within JSON; [4] two
parallel calls → [5, 6]; [7] get_order → [8] text; [9] run_python → [10]; [11] refund → [12]; [13] refund →
[14]; [15] the answer. ``/srv/shop/work`` is an argument of all ten tasks: a constant.
"""

from dataclasses import replace

from memory_bank.audit.needs import MOST_NEEDS, environment_constants, needs_of
from memory_bank.audit.traces import Trace


def test_constants_of_the_environment(traces):
    assert environment_constants(traces) == {"/srv/shop/work"}
    assert environment_constants(traces[:7]) == frozenset()  # eight tasks at least
    same = [replace(t, task="one") for t in traces]
    assert environment_constants(same) == frozenset()


def of_orders(traces):
    return {t.position: t for t in needs_of(traces[0], environment_constants(traces))}


def test_the_turns_and_what_they_need(traces):
    turns = of_orders(traces)
    assert {p: (t.kind, {n.value: n.age for n in t.needs}) for p, t in turns.items()} == {
        4: ("call", {"CUS-4471": 1}),  # from nested JSON; the region stands in the tools' schemas
        7: ("call", {"#W5511": 1}),  # parallel calls, answered in another order
        9: ("call", {"cap_8fK2m": 1, "CUS-4471": 1}),  # in code; the last output shows the customer again
        11: ("call", {"#W5511": 2, "149.5": 2, "RFD-310": 1, "ada.quill@example.org": 4}),  # REF-2209: system
        13: ("call", {"#W6020": 4, "/srv/shop/out/W5511_receipt.pdf": 3}),  # 12.0 is trivial
        15: ("say", {"#W5511": 2, "W6020": 1, "RFD-310": 2, "149.50": 2}),
    }


def test_first_use_and_kind(traces):
    turns = of_orders(traces)
    needs = {(p, n.value): n for p, t in turns.items() for n in t.needs}
    assert [v for (p, v), n in needs.items() if p < 15 and not n.first_use] == ["CUS-4471", "#W5511"]
    assert needs[9, "cap_8fK2m"].kind == "token"
    assert needs[11, "149.5"].kind == "leaf"
    assert list(needs[11, "149.5"].forms) == ["149.5", "149.50"]
    assert needs[15, "#W5511"].age == 2
    assert {n.born for n in needs.values()} == {"tool"}


def test_what_the_agent_said_first_is_its_own():
    turn = {
        "role": "assistant",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"id": "NEW-4410"}'}}
        ],
    }
    messages = [
        turn, {"role": "tool", "tool_call_id": "a", "content": "made"},
        turn, {"role": "tool", "tool_call_id": "a", "content": "found NEW-4410"},
        turn,
    ]  # fmt: skip
    need = needs_of(Trace("t", messages))[-1].needs[0]
    assert (need.value, need.born, need.age, need.first_use) == ("NEW-4410", "agent", 1, False)


def test_supports_are_the_words_around_without_keys_and_empty_words(traces):
    need = of_orders(traces)[13].needs[0]
    assert need.value == "#W6020"
    assert need.supports == (frozenset({"12", "149", "3141", "7788", "ending", "visa", "w5511"}),)


def test_parts_of_longer_values_do_not_count_and_there_is_a_limit():
    output = " ".join(f"/data/file_{i}x.csv" for i in range(40))
    code = "\n".join(f"read('/data/file_{i}x.csv')" for i in range(40))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": code}}
    done = {"role": "tool", "tool_call_id": "a", "content": output}
    first = {"role": "assistant", "tool_calls": [{**call, "function": {"name": "f", "arguments": "{}"}}]}
    needs = needs_of(Trace("t", [first, done, {"role": "assistant", "tool_calls": [call]}]))[0].needs
    assert len(needs) == MOST_NEEDS
    assert all(n.value.startswith("/data/") for n in needs)


def test_odd_messages_are_read_as_what_they_are():
    odd = [
        1, None, "x", {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": [{"type": "text", "text": "id QX-4410"}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "g", "arguments": {"id": "QX-4410"}}}]},
        {"role": "tool", "tool_call_id": "a", "content": None},
        {"role": "assistant", "content": 3.5, "tool_calls": "zzz"},
    ]  # fmt: skip
    turns = needs_of(Trace("odd", odd))
    assert [n.value for t in turns for n in t.needs] == ["QX-4410"]
