"""Every public name has an example in its docstring, all examples run, and names in docstrings and on pages exist."""

import ast
import builtins
import doctest
import importlib
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Iterator
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
    "FactStore": ("store", "store_many", "get", "get_many", "steps", "forget", "page", "clear", "size"),
    "InsightStore": (
        "add", "add_many", "search", "rank", "get_summary", "get_insight", "get_insights", "trace_ids", "clear",
        "is_empty", "size",
    ),
    "MemoryProcessor": ("apply_strategy", "state", "reset_state", "close"),
    "LLMOrchestrator": ("generate", "generate_plain", "set_active_context", "reset_session", "trace", "close"),
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


ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [
    *(ROOT / f"{n}.md" for n in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
DATA = (
    "config.toml",
    "Makefile",
    "pyproject.toml",
    "compose.yaml",
    "compose.replicas.yaml",
    "examples/experiment.toml",
)
FENCED = re.compile(r"^[ \t]*```.*?^[ \t]*```", re.S | re.M)
FOREIGN = {  # names of other packages and programs, of variables of the environment, and ids in examples
    "AsyncAnthropic", "AsyncOpenAI", "CORSMiddleware", "DataFrame", "DefaultAsyncHttpxClient", "GZipMiddleware",
    "MemoryBankMiddleware", "MemoryBankPlugin", "Multiprocess", "TrustedHostMiddleware", "_beta_builtin_memory_tool",
    "all_messages", "bm25s", "call_0001", "call_2", "call_DdmO9pD3xa9XTPNJ32zg2hcA", "call_model_input_filter",
    "core", "create_agent", "encode_single_device", "extra_headers", "get_full_steps", "lib", "memory_20250818",
    "memory_bank__get_record", "pandas", "plugins", "to_input_list", "Origin", "App",
    "RunConfig", "evbench", "middleware", "TIKTOKEN_CACHE_DIR",
    "CodeAgent", "ContextOffloader", "FunctionAgent", "LiteLlm", "Mock", "ReAct", "ReActAgent", "ReActV2", "ReactAgent",
    "Signal", "add_assistant", "add_system", "create_deep_agent", "dspy", "explore", "failed_approaches", "headroom",
    "message_history", "num_ctx", "return_full_code", "tinyagent", "to_list", "to_namespace", "uncertain",
    "clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112",
    "AGENT", "APPLICATION", "BANK", "COPY", "DynamicUser", "PASSED", "PGPASSWORD", "ProtectHome", "SKILL",
    "StateDirectory", "TMPDIR", "VACUUM", "b6059076", "e7a13d30", "htdigest", "no_SET", "orders", "rewind",
    "get_policy", "test_NAME", "traceparent",
}  # fmt: skip


def docstrings(tree: ast.AST) -> list[ast.Constant]:
    """The strings that stand by themselves: docstrings, and what describes the name above."""
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    return [v for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]


def names_in(text: str, quote: str) -> Iterator[str]:
    """The words of the names, paths and calls that a text has between such quotes."""
    for name in re.findall(rf"{quote}([^`\n]+){quote}", text):
        if re.fullmatch(r"[\w./]+(\(.*\))?", name) and not (ROOT / name).exists():
            yield from re.findall(r"\b[A-Za-z_]\w{2,}", name.partition("(")[0])


def names_of_the_code() -> set[str]:
    """Every name, and every word of a string that is no docstring, of the package, the benchmarks and their data."""
    sources = [*SOURCES, *(ROOT / "benchmarks").rglob("*.py"), ROOT / "tests/examples.py"]
    words = {word for path in sources for word in path.with_suffix("").parts} | set(dir(builtins))
    for path in sources:
        tree = ast.parse(path.read_text())
        prose = {id(constant) for constant in docstrings(tree)}
        for node in ast.walk(tree):
            of_node = [
                getattr(node, field, None) for field in ("id", "attr", "arg", "name", "asname", "module")
            ]
            if isinstance(node, ast.Constant) and id(node) not in prose:
                value = node.value
                of_node.append(value.decode("latin-1") if isinstance(value, bytes) else value)
            words |= {word for text in of_node if isinstance(text, str) for word in re.findall(r"\w+", text)}
    data = [p for kind in ("toml", "json", "js") for p in (ROOT / "src").rglob(f"*.{kind}")]
    for path in (*data, *(ROOT / name for name in DATA)):
        words |= set(re.findall(r"\w+", path.read_text()))
    return words


def test_names_in_docstrings_and_on_pages_exist():
    """A page may also name what its own examples define, a setting by its environment variable, a metric in full."""
    code = names_of_the_code() | FOREIGN
    prose = [(path, "``", d.value, "") for path in SOURCES for d in docstrings(ast.parse(path.read_text()))]
    for path in PAGES:
        text = path.read_text()
        prose.append((path, "`", FENCED.sub("", text), " ".join(FENCED.findall(text))))
    missing = set()
    for path, quote, text, examples in prose:
        defined = code | set(re.findall(r"\w+", examples))
        for name in names_in(text, quote):
            short = re.sub(r"^(?:MEMORY_BANK_SERVICE__|memory_bank_)|_total$", "", name)
            if name not in defined and short and short not in code and short.lower() not in code:
                missing.add(f"{path.relative_to(ROOT)}: {name}")
    assert sorted(missing) == []
