"""Every public name has an example in its docstring, and all examples of the library are run."""

import doctest
import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import pytest

import memory_bank
import memory_bank.history
from memory_bank.testing import ScriptedModel, ScriptedServer, say
from tests.chats import call, result, system, user

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MEMBERS = {  # the public part of classes that have more for the library itself
    "Memory": ("tools", "plan", "context", "call", "search", "record", "records", "reset", "close"),
    "MemoryBankState": ("open", "fact_store", "insight_store", "add", "pending", "reset", "flush", "close"),
    "FactStore": ("store", "store_many", "get", "get_many", "steps", "marks", "mark", "forget", "page", "clear", "size"),
    "InsightStore": (
        "add", "add_many", "search", "rank", "get_summary", "get_insight", "get_insights", "trace_ids", "clear",
        "is_empty", "size",
    ),
    "MemoryProcessor": ("apply_strategy", "state", "reset_state", "close"),
    "LLMOrchestrator": ("generate", "generate_plain", "set_active_context", "reset_session", "trace", "totals", "close"),
    "Plan": ("decisions", "as_dict", "as_html"),
    "LexicalEmbedder": ("encode", "encode_queries"),
    "Config": ("strategy",),
    "InteractionRecord": ("create",),
}  # fmt: skip
MODULES = sorted(m.name for m in pkgutil.walk_packages(memory_bank.__path__, "memory_bank."))
NAMES = [n for n in memory_bank.__all__ if n != "TOOL_SCHEMAS"]


def example_of(thing: object) -> str:
    return "\n".join(e.source for e in doctest.DocTestParser().get_examples(inspect.getdoc(thing) or ""))


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_has_an_example(name):
    thing = getattr(memory_bank, name)
    assert name in example_of(thing), f"{name}: its docstring has no example of its use"
    for member in MEMBERS.get(name, ()):
        has_own = ">>>" in (inspect.getdoc(inspect.getattr_static(thing, member)) or "")
        shown = f".{member}" in example_of(thing) or (member == "close" and "with " in example_of(thing))
        assert has_own or shown, f"{name}.{member} is in no example"


def test_the_members_of_a_memory_are_all_there():
    """Each method is in MEMBERS or is the asynchronous twin of one that is."""
    own = {n for n in vars(memory_bank.Memory) if not n.startswith("_")} | {"aclose"}
    twins = {f"a{n}" for n in MEMBERS["Memory"]} & own
    assert own - twins == set(MEMBERS["Memory"])
    assert twins == {"acontext", "acall", "asearch", "arecord", "areset", "aclose"}


def examples() -> list[doctest.DocTest]:
    """The examples of all modules that can be imported here, each once."""
    found = {}
    for name in MODULES:
        source = Path(importlib.util.find_spec(name).origin).read_text()
        if ">>>" in source:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError:  # of an extra that is not installed
                continue
            for test in doctest.DocTestFinder(exclude_empty=True).find(module, name, module):
                if test.examples:
                    found[test.name] = test
    return list(found.values())


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_an_example_runs(test, tmp_path, monkeypatch):
    """What an example does not make itself: an agent's ``messages``, a ``memory`` or ``state`` of them, a ``client``."""
    output = '{"order": "ORD-1", "due": "2026-03-01", "note": "late"}'
    chat = [system(), user(), call(("c1", "get_order", {"order": "ORD-1"})), result("c1", output)]
    monkeypatch.chdir(tmp_path)
    with ScriptedServer(lambda body: say("It is late.")) as server:
        openai = pytest.importorskip("openai", reason="needs openai")

        state = memory_bank.MemoryBankState()
        memory_bank.apply_memory_bank_strategy(chat, None, memory_bank.load_config(), state)
        memory = memory_bank.Memory()
        memory.context(chat)
        client = openai.OpenAI(base_url=server.base_url, api_key="k")
        given = {"messages": chat, "state": state, "memory": memory, "client": client}
        given |= {"model": ScriptedModel(lambda messages, name: "A summary.")}
        faces = (memory_bank, memory_bank.history)
        public = {name: getattr(face, name) for face in faces for name in face.__all__}
        test.globs = {**public, **test.globs, **given}
        printed: list[str] = []
        failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=printed.append)
    assert not failed, "".join(printed)
