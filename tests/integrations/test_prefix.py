"""The contract of a prefix over every API and adapter: in process, and through the proxy before a scripted upstream."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra service")
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests import blocks, items
from tests.chats import any_chats, good_chats, system, user
from tests.contracts.prefix import Sent, fold_of, fold_steps, sent_body
from tests.examples import examples, first_short
from tests.integrations import test_sent as forms
from tests.service.caching import Cached
from tests.service.proxied import post, scripted
from tests.service.requests import PATHS, body_of
from tests.transcript.test_textcalls import FORMS as TEXT_FORMS
from tests.transcript.test_textcalls import START

from memory_bank import MemoryProcessor
from memory_bank.testing import Reply

FOLDS = {"history_budget": 1_700, "refresh_after": 1_700}
STRATEGIES = {
    layout: {**forms.BANK, **FOLDS, "layout": layout, "token_encoding": "approximate"}
    for layout in ("native", "block")
}
STRATEGIES["part"] = {**STRATEGIES["native"], "history_budget": 8_000, "refresh_after": 8_000}
"""For outputs that are shown in part, or without what they repeat, at their first sight: folds between many of them."""
ENABLED, ADAPTIVE = {"type": "enabled", "budget_tokens": 1_024}, {"type": "adaptive"}
THINKING = {
    "none": None,
    "enabled": ENABLED,
    "adaptive": ADAPTIVE,
    "omitted": {**ADAPTIVE, "display": "omitted"},
    "drop": {**ADAPTIVE, "block_binding": {"prefix_mismatch_behavior": "drop_block"}},
}
Steps = list[list[Any]]


def turns(seed: int, *, parallel: bool = True, count: int = 17) -> list[forms.Turn]:
    """A conversation with parallel calls, pictures, long and short results, and new prompts in between."""
    rng = random.Random(seed)
    made: list[forms.Turn] = []
    while len(made) < count:
        made += forms.conversation(rng.choice, parallel=parallel)
    return [
        forms.Turn(
            turn.words,
            tuple(
                forms.Called(
                    f"call_{at}_{n}", c.name, {**c.arguments, "at": f"{at}-{n}"}, c.result, c.picture
                )
                for n, c in enumerate(turn.calls)
            ),
            turn.after,
        )
        for at, turn in enumerate(made[:count])
    ]


def long_outputs(made: Sequence[forms.Turn]) -> list[forms.Turn]:
    """The turns; of every three calls, one has an output that is shown in part, and one an output that repeats much."""

    def rows(number: int, count: int) -> str:
        told = [
            {"sku": f"SKU-{number}-{k}", "place": f"HUB {k * 7919 % 10_007}", "note": ""}
            for k in range(count)
        ]
        return json.dumps({"rows": told, "page": number}, indent=2)

    counts, number, out = (300, 40), 0, []
    for turn in made:
        calls = []
        for called in turn.calls:
            number += 1
            long = None if number % 3 == 0 else rows(number, counts[number % 3 - 1])
            calls.append(replace(called, result=long, picture=False) if long else called)
        out.append(replace(turn, calls=tuple(calls)))
    return out


def grown(write: Callable[[Sequence[forms.Turn]], list[Any]], made: Sequence[forms.Turn]) -> Steps:
    """The requests of an agent, each with one more turn."""
    return [write(made[:end]) for end in range(len(made) + 1)]


def check(sent: list[Sent], least: int = 2) -> None:
    folds = fold_steps(sent)
    assert least <= len(folds) <= len(sent) // 3, folds


# In process: the APIs and the adapters


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=[pytest.mark.long] if (i + j) % 3 else [])  # each has one
        for i, name in enumerate(forms.FORMS)
        for j, layout in enumerate(STRATEGIES)
    ],
)
def test_what_an_adapter_sends_begins_with_what_it_sent(
    name: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(forms.STRATEGIES, "prefix", STRATEGIES[layout])
    form = forms.opened(name)
    made = turns(1, parallel=form.parallel)
    kept: dict[str, Any] = {}
    sent = []
    for natives in grown(form.write, long_outputs(made) if layout == "part" else made):
        rebuilt, plan = form.rebuild(natives, "prefix", kept) if len(natives) > 2 else (natives, None)
        sent.append(Sent("", [form.dump([n]) for n in rebuilt], fold_of(plan)))
    check(sent)


@examples(25)
@given(
    st.lists(good_chats(max_rounds=12) | any_chats(), min_size=1, max_size=3),
    st.sampled_from([0, 60, 400]),
    st.sampled_from([60, 200]),
    st.sampled_from(["native", "block"]),
)
def test_any_history_begins_as_it_began(
    chats: list[list[Any]], budget: int, refresh: int, layout: str
) -> None:
    """Broken pairs, results without calls, ids twice, what is no message: whatever an agent appends."""
    whole = [system(), user(), *(m for chat in chats for m in chat)]
    strategy = {**STRATEGIES[layout], "history_budget": budget, "refresh_after": refresh}
    processor = MemoryProcessor({"memory_strategies": {"m": strategy}})
    sent = []
    for end in range(2, len(whole) + 1):
        context, _ = processor.apply_strategy(whole[:end], "m", session_id="s")
        plan = processor.state("m", "s").last_plan
        if not plan.rule:  # else the original goes: what came is broken so that a context would be worse
            sent.append(Sent("", [repr(m) for m in context], fold_of(plan)))
    fold_steps(sent)


# Through the proxy


def asked(
    folder: Path, api: str, requests: Sequence[tuple[dict[str, Any], tuple[bytes, ...]]], **service: Any
) -> list[Sent]:
    """What went upstream for the requests of an agent."""
    service = {"strategies": STRATEGIES, "strategy": "native", **service}
    answer = Reply("ok", usage=(9_000, 1), cached=(8_000, 0))
    key = "input" if api == "responses" else "messages"
    with scripted(lambda _: answer, folder, strict=False, **service) as (server, p):
        for body, headers in requests:
            assert post(p.port, PATHS[api], body, *headers).status == 200
        assert [line for line in p.lines if "refused" in line or "unforeseen" in line] == []
        told = p.told(len(requests))
        pairs = zip(server.requests, told, strict=True)
        return [sent_body(r.body, key, e.step and e.step.plan) for r, e in pairs]


def bodies(api: str, steps: Steps, **members: Any) -> list[tuple[dict[str, Any], tuple[bytes, ...]]]:
    """The requests of a session with these conversations."""
    key = "input" if api == "responses" else "messages"
    return [({**body_of(api, []), **members, key: step}, (b"x-memory-session: s",)) for step in steps]


def thinking_steps(thinking: Any, seed: int = 2, *, interleaved: bool = True, long: bool = False) -> Steps:
    """Requests of the Messages API whose turns think, most of them, some with a redacted block as well.

    New prompts come between two turns, in a message of their own or with the results of the turn before.
    """
    messages = forms.messages(long_outputs(turns(seed)) if long else turns(seed))
    out: list[Any] = []
    asks = []
    begun = False
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            if thinking and (not begun or (interleaved and at % 10 != 7)):
                hidden = thinking.get("display") == "omitted"
                own = [blocks.thought("" if hidden else f"thought {at} " * 30, f"signature {at}")]
                own += [{"type": "redacted_thinking", "data": f"data {at}"}] if at % 6 == 1 else []
                message = {**message, "content": [*own, *message["content"]]}
            begun = True
        out.append(message)
        if message["role"] == "user":
            asks.append(len(out))
            if at % 22 == 12:
                out += [blocks.turn(f"Done with {at}."), blocks.user(f"Go on after {at}.")]
                asks.append(len(out))
                begun = False
    return [out[:end] for end in asks]


@pytest.mark.parametrize("layout", first_short(STRATEGIES))
@pytest.mark.parametrize("name", THINKING)
def test_thinking_that_was_sent_stays(name: str, layout: str, tmp_path: Path) -> None:
    thinking = THINKING[name]
    members = {"thinking": thinking} if thinking else {}
    steps = thinking_steps(thinking, long=layout == "part")
    check(asked(tmp_path, "messages", bodies("messages", steps, **members), strategy=layout))


def test_thinking_at_the_beginning_of_a_loop_alone(tmp_path: Path) -> None:
    """As a model thinks that does not interleave."""
    steps = thinking_steps(ENABLED, interleaved=False)
    check(asked(tmp_path, "messages", bodies("messages", steps, thinking=ENABLED)))


class Block(BaseModel, extra="allow"):
    """A block as the SDK returns it: clients append an answer's ``content`` as it is."""

    type: str
    citations: None = None


FORMS_OF_LISTS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "dicts": lambda step: step,
    "objects": lambda step: [
        {**m, "content": [Block(**b) for b in m["content"]]} if m["role"] == "assistant" else m for m in step
    ],
    "with a system message": lambda step: [step[0], {"role": "system", "content": "Be brief."}, *step[1:]],
    "texts as blocks": lambda step: [
        {**m, "content": [blocks.text(m["content"])] if isinstance(m["content"], str) else m["content"]}
        for m in step
    ],
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        pytest.param(
            name, form, marks=[pytest.mark.long] if i > 1 or (i + j) % 2 else []
        )  # each form has one
        for i, name in enumerate(["enabled", "adaptive", "alone", "omitted"])
        for j, form in enumerate(FORMS_OF_LISTS)
    ],
)
def test_thinking_of_a_list_without_a_request(name: str, form: str) -> None:
    """The library sees the messages alone. A turn that had to begin with thinking still does, and what was sent stays."""
    write = FORMS_OF_LISTS[form]
    steps = thinking_steps(
        {"display": "omitted"} if name == "omitted" else ENABLED, interleaved=name != "alone"
    )
    if name == "adaptive":  # the first turn does not think at once
        begun = next(at for at, m in enumerate(steps[-1]) if m["role"] == "assistant")
        spoke = [b for b in steps[-1][begun]["content"] if "thinking" not in b["type"]]
        steps = [
            [{**m, "content": spoke} if at == begun else m for at, m in enumerate(step)] for step in steps
        ]
    processor = MemoryProcessor({"memory_strategies": STRATEGIES})
    objects: dict[int, Any] = {}
    sent = []
    for step in steps:
        came = write([*step])
        came = [objects.setdefault(at, m) for at, m in enumerate(came)]
        out, _ = processor.apply_strategy(came, "native")
        state = processor.state("native")
        plan = None if state is None else state.last_plan
        plain = json.loads(json.dumps(out, default=lambda block: block.model_dump(exclude_none=True)))
        sent.append(Sent("", [json.dumps(m) for m in plain], fold_of(plan)))
        answered = next((m for m in reversed(plain) if m["role"] == "assistant"), None)
        turn = plain[max([0, *(at for at, m in enumerate(plain) if is_prompt(m))]) :]
        begins = [m["content"][0]["type"] for m in turn if m["role"] == "assistant"][:1]
        if name in ("enabled", "alone") and answered and not is_prompt(plain[-1]):
            assert begins[0] in ("thinking", "redacted_thinking")
        elif fold_of(plan) is not None:
            kept = [b for m in plain for b in m["content"] if isinstance(b, dict) and "thinking" in b["type"]]
            assert name in ("enabled", "alone") or kept == []
    check(sent)


def is_prompt(message: Any) -> bool:
    content = message["content"]
    return message["role"] == "user" and "tool_result" not in [
        b["type"] for b in content if isinstance(b, dict)
    ]


@pytest.mark.parametrize("marked", first_short(["last", "two", "system", "head"], 2))
def test_a_client_that_moves_its_cache_marks(marked: str, tmp_path: Path) -> None:
    def with_marks(step: list[Any]) -> list[Any]:
        at = {"last": [-1], "two": [-1, -3], "head": [0]}.get(marked, [])
        out = [*step]
        for i in at:
            if len(out) >= -i:
                content = out[i]["content"]
                own = [blocks.text(content)] if isinstance(content, str) else [*content]
                out[i] = {**out[i], "content": [*own[:-1], {**own[-1], **blocks.MARK}]}
        return out

    steps = [with_marks(step) for step in thinking_steps(ENABLED)]
    system = [blocks.text("You check.", **blocks.MARK)]
    check(asked(tmp_path, "messages", bodies("messages", steps, thinking=ENABLED, system=system)))


@pytest.mark.parametrize("api", PATHS)
def test_memory_tools_change_no_prefix(api: str, tmp_path: Path) -> None:
    write = {"messages": forms.messages, "responses": forms.items, "chat": forms.chat}[api]
    check(asked(tmp_path, api, bodies(api, grown(write, turns(3))), inject_tools="auto"))


@pytest.mark.parametrize("layout", ["native", "part"])
@pytest.mark.parametrize("encrypted", first_short([True, False]))
def test_reasoning_of_the_responses_api(encrypted: bool, layout: str, tmp_path: Path) -> None:
    def reasoned(made: Sequence[forms.Turn]) -> list[Any]:
        out: list[Any] = []
        for item in forms.items(made):
            if item.get("type") == "function_call" and out[-1].get("type") != "function_call":
                own = items.thought(f"rs_{item['call_id']}")
                out.append(own if encrypted else {**own, "encrypted_content": None})
            out.append(item)
        return out

    made = long_outputs(turns(4)) if layout == "part" else turns(4)
    steps = grown(reasoned, made)
    check(asked(tmp_path, "responses", bodies("responses", steps, store=False), strategy=layout))


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_calls_in_text(form: str, tmp_path: Path) -> None:
    chat = [*START]
    steps = [chat]
    for step in range(30):
        chat = [
            *chat,
            *TEXT_FORMS[form](step, json.dumps({"order": f"ORD-{step}", "note": "as told " * 160})),
        ]
        steps.append(chat)
    check(asked(tmp_path, "chat", [({"model": "m", "messages": s}, ()) for s in steps]))


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_results_that_come_late(api: str, tmp_path: Path) -> None:
    """A model is asked while results of parallel calls are missing; some come after the next turn."""
    write = forms.items if api == "responses" else forms.chat
    steps: Steps = []
    made = turns(5)
    for end in range(len(made) + 1):
        whole = write(made[:end])
        missing = 1 if end and len(made[end - 1].calls) > 1 and not made[end - 1].after else 0
        steps += [whole[:-missing]] if missing else []
        steps.append(whole)
    check(asked(tmp_path, api, bodies(api, steps)))


def test_turns_of_server_tools_stay_whole_and_move_no_fold(tmp_path: Path) -> None:
    steps = []
    for step in grown(forms.messages, turns(6)):
        out = []
        for at, message in enumerate(step):
            if message["role"] == "assistant" and at % 4 == 1:
                content = [*blocks.SERVER_TOOL, *message["content"]]
                message = {**message, "content": content}
            out.append(message)
        steps.append(out)
    check(asked(tmp_path, "messages", bodies("messages", steps)))


HEADERS = {
    "messages": (b"x-claude-code-session-id: 6d0f0c55-6d0e-4f8b-b8a6-5e1e2c0f9a10",),
    "chat": (b"x-session-id: 6d0f0c55-6d0e-4f8b-b8a6-5e1e2c0f9a10",),
    "responses": (),
}


@pytest.mark.parametrize("api", first_short(HEADERS))
def test_several_agents_of_one_session(api: str, tmp_path: Path) -> None:
    """Subagents with the id or the cache key of their parent, or with an id of their own beside it."""
    write = {"messages": forms.messages, "responses": forms.items, "chat": forms.chat}[api]
    members = {"prompt_cache_key": "key"} if api == "responses" else {}

    def named(step: list[Any], agent: int) -> list[Any]:
        at = next(i for i, m in enumerate(step) if m.get("role") == "user")
        return [*step[:at], {**step[at], "content": f"You are agent {agent}."}, *step[at + 1 :]]

    agents = [[named(s, n) for s in grown(write, turns(7 + n))] for n in range(3)]
    order = [(n, step) for steps in zip(*agents, strict=True) for n, step in enumerate(steps)]
    own = (b"x-claude-code-agent-id: one",)
    requests = []
    for n, step in order:
        [(body, _)] = bodies(api, [step], **members)
        requests.append((body, HEADERS[api] + (own if n == 2 and api == "messages" else ())))
    sent = asked(tmp_path, api, requests)
    for n in range(3):
        check(sent[n::3], 1)


def reminders(steps: Steps) -> Iterator[list[Any]]:
    """What Claude Code sends: a text of the system's in the message with the results, which stays there."""
    for step in steps:
        out = []
        for at, message in enumerate(step):
            if message["role"] == "user" and at % 6 == 2:
                content = [*message["content"], blocks.text(f"<system-reminder>todo {at}</system-reminder>")]
                message = {**message, "content": content}
            out.append(message)
        yield out


def test_a_client_whose_system_prompt_changes_at_every_request(tmp_path: Path) -> None:
    """The messages begin as before: a provider that does not count the line that changes keeps the prefix."""
    steps = [*reminders(thinking_steps(ENABLED))]
    requests = [
        (
            {
                **body,
                "system": [blocks.text(f"x-anthropic-billing-header: cch={n};"), blocks.text("You check.")],
            },
            h,
        )
        for n, (body, h) in enumerate(bodies("messages", steps, thinking=ENABLED))
    ]
    check([Sent("", s.messages, s.fold) for s in asked(tmp_path, "messages", requests)])


def test_a_long_first_prompt_is_read_from_the_cache_at_each_fold(tmp_path: Path) -> None:
    """Beside a mark of the client on its system prompt alone, and beside those that it moves."""
    head = blocks.user("Check the orders. " + "The rules of the shop are long. " * 900)
    for name, marked in (("system", ()), ("moved", (-1, -3))):
        cache = Cached()
        read = []
        with scripted(cache, tmp_path / name, STRATEGIES, strategy="native", inject_tools=False) as (
            server,
            p,
        ):
            for step in grown(forms.messages, turns(8)):
                messages = [head, *step[1:]]
                for at in marked if len(messages) > 3 else ():
                    content = messages[at]["content"]
                    messages[at] = {
                        **messages[at],
                        "content": [*content[:-1], {**content[-1], **blocks.MARK}],
                    }
                [(body, headers)] = bodies("messages", [messages])
                body["system"] = [blocks.text("You check.", **blocks.MARK)] * (2 if marked else 1)
                assert post(p.port, PATHS["messages"], body, *headers).status == 200
                read.append(cache.cached[-1])
            assert server.refused == []
            assert sum(e.memory == "rebuilt" for e in p.told(len(read))) > 10
        assert min(read[4:]) > 7_000, read


def test_answers_that_refer_to_an_earlier_read(tmp_path: Path) -> None:
    """A copy that stands in the place of such an answer stays as it was sent, whatever is read or edited later."""
    text = "\n".join(f"{n}\tvalue_{n} = {n * 7}" for n in range(1, 40))
    step: list[Any] = [blocks.user("Tidy the files.")]
    steps = [step]
    for n in range(40):
        name, given, output = (
            "Read",
            {"file_path": f"/src/file_{n}.py"},
            text.replace("value", f"value_of_{n}"),
        )
        if n % 5 == 3:
            given = {"file_path": f"/src/file_{n % 2}.py"}
            output = "File unchanged since your last Read, refer to that earlier tool_result instead of re-reading."
        elif n % 5 == 4:
            given = {
                "file_path": f"/src/file_{n % 2}.py",
                "old_string": "7",
                "new_string": f"7 + {n}",
                "replace_all": True,
            }
            name, output = "Edit", "The file has been updated successfully. No need to read it back."
        step = [
            *step,
            blocks.turn(blocks.use(f"call_{n}", name, **given)),
            blocks.user(blocks.answer(f"call_{n}", output)),
        ]
        steps.append(step)
    sent = asked(tmp_path, "messages", bodies("messages", steps))
    check(sent)
    assert any("no longer here; its text" in m for m in sent[-1].messages)


def test_a_fold_stands_though_a_copy_makes_the_context_larger_than_the_history(tmp_path: Path) -> None:
    """The full history would cost fewer tokens then, and all of them would be written to the cache anew."""
    text = "\n".join(f"{n}\tvalue_{n} = {n * 7919 % 10_007}" for n in range(1, 520))
    refers = "File unchanged since your last Read, refer to that earlier tool_result instead of re-reading."
    outputs = [text, *(f"done {n} " * 90 for n in range(12)), refers, *(f"then {n}" for n in range(6))]
    step: list[Any] = [blocks.user("Tidy the files.")]
    steps = [step]
    for n, output in enumerate(outputs):
        read = output in (text, refers)
        use = blocks.use(
            f"call_{n}", "Read" if read else "run", file_path="/src/a.py" if read else f"step {n}"
        )
        step = [*step, blocks.turn(use), blocks.user(blocks.answer(f"call_{n}", output))]
        steps.append(step)
    sent = asked(tmp_path, "messages", bodies("messages", steps))
    check(sent, 1)
    assert any("no longer here; its text" in m for m in sent[-1].messages), [s.fold for s in sent]
