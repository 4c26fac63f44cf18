"""The documentation runs: every page's Python and commands, in their order; what does not run says why.

A block is marked by an HTML comment above it, a whole page by one in its first line:

- ``<!-- not run: REASON -->``: it cannot run in a test;
- ``<!-- run by: TEST -->``: a test of its own runs it.
"""

import contextlib
import importlib.util
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from memory_bank.cli.demo import demo
from memory_bank.config import load_config
from memory_bank.testing import ScriptedServer, call, calls, say
from tests.ports import free_port

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "examples/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(
    r'(?:^<!-- (not run|run by): ([^\n]+) -->\n)?^```(\w*)(?: title="([\w.]+)")?\n(.*?)^```$', re.M | re.S
)
RUN = ("python", "console", "toml")


class Block(NamedTuple):
    """A fenced block of a page, with the mark above it; one with a title is a file of that name."""

    page: str
    language: str
    code: str
    mark: str = ""
    reason: str = ""
    title: str = ""

    def commands(self) -> str:
        """The commands of a console block as a script: ``$`` begins one, ``>`` continues it."""
        lines = self.code.splitlines()
        assert all(line[:2] in ("$ ", "> ") for line in lines), f"{self.page}: {self.code}"
        return "\n".join(line[2:] for line in lines)


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    whole = re.match(r"<!-- (run by): (.+) -->\n", text)
    found = [Block(page, m[3], m[5], m[1] or "", m[2] or "", m[4] or "") for m in BLOCK.finditer(text)]
    assert text.count("\n```") == 2 * len(found), f"{page}: a fence without its end, or indented"
    return [b._replace(mark=whole[1], reason=whole[2]) if whole and not b.mark else b for b in found]


EVERY = [block for page in PAGES for block in blocks(page)]
RUNNABLE = [p for p in PAGES if any(b.page == p and b.language in RUN and not b.mark for b in EVERY)]


# -- what the pages run with

ORDERS = [{"order_id": f"ORD-{i}", "due": "2026-03-01"} for i in range(60)]
SCRIPT = [
    call("list_orders", customer="CUS-7"),
    calls(("get_order", {"id": "ORD-1"}), ("get_order", {"id": "ORD-2"})),
    *(call("get_order", id=f"ORD-{i}") for i in range(3, 8)),
    say("ORD-1 is late."),
]
TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object"}}}
    for n in ("list_orders", "get_order")
]


def run_tool(name, arguments):
    assert isinstance(arguments, dict), "a tool takes parsed arguments"
    return json.dumps(ORDERS if name == "list_orders" else {"asked": arguments, "lines": ["x" * 50] * 40})


@pytest.fixture
def model():
    """A model: of requests with tools it calls tools and then answers; for others it writes a summary."""
    turns = itertools.cycle(SCRIPT)
    with ScriptedServer(lambda body: next(turns) if body.get("tools") else say("A summary.")) as server:
        yield server


@pytest.fixture
def folder(tmp_path):
    """A folder with the examples, and a PATH with `memory-bank`, `python` and a `pip` that does nothing."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, line in {
        "memory-bank": f'exec {sys.executable} -m memory_bank "$@"',
        "python": f'exec {sys.executable} "$@"',
        "pip": "exit 0",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    return tmp_path


def run_commands(script: str, folder: Path, **environment: str) -> tuple[str, str]:
    """What the commands print; whatever they leave running is killed."""
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        running = subprocess.Popen(
            ["bash", "-e", "-c", script], cwd=folder, stdout=out, stderr=err, start_new_session=True,
            env=os.environ | {"PATH": path, **environment},
        )  # fmt: skip
        try:
            code = running.wait(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
        out.seek(0)
        err.seek(0)
        printed = out.read(), err.read()
    assert code == 0, f"{script}\n{printed}"
    return printed


def run_page(page: str, folder: Path) -> str:
    """All blocks of a page in their order: what they print."""
    scope = {"TOOLS": TOOLS, "run_tool": run_tool}
    printed = []
    for block in blocks(page):
        if block.mark:
            continue
        if block.language == "python":
            exec(compile(block.code, page, "exec"), scope)
        elif block.language == "toml":
            (folder / "page.toml").write_text(block.code)
            load_config(folder / "page.toml")
        elif block.language == "console":
            printed += run_commands(block.commands(), folder)
    for name in ("state", "memory"):
        if name in scope:
            scope[name].close()
    return "".join(printed)


PRINTED = {  # what a page's commands and code must print, besides running
    "README.md": ["ORD-1 is late.", "8 records", "has words of the query"],
    "docs/howto/agent-loop.md": ["ORD-1 is late.", "kept", "list_orders"],
    "docs/howto/memory-tools.md": ["tool: list_orders"],
    "docs/howto/typed-histories.md": ["It waits for the carrier.", "tool: list_orders"],
    "docs/operations.md": ['"status":"ok"', "memory_bank_database_up 1.0", "did you mean port?"],
    "docs/classic.md": ["[RETRIEVED RECORD 3]", "<retrieved-data seal="],
}


@pytest.mark.parametrize(
    "page", [p if p in PRINTED else pytest.param(p, marks=pytest.mark.long) for p in RUNNABLE]
)
def test_every_page_runs(page, model, folder, monkeypatch, capsys):
    if any("memory-bank serve" in b.code for b in EVERY if b.page == page and not b.mark):
        pytest.importorskip("fastapi", reason="needs the extra service")
    if any("openai" in b.code for b in EVERY if b.page == page and not b.mark):
        pytest.importorskip("openai", reason="needs the extra openai")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    printed = run_page(page, folder)
    assert model.refused == []
    printed += capsys.readouterr().out
    assert [text for text in PRINTED.get(page, ()) if text not in printed] == []


AGENT = """
import json, openai
client = openai.OpenAI(max_retries=20)
messages = [{"role": "user", "content": "Which orders of customer CUS-7 are late?"}]
while messages[-1]["role"] != "assistant":
    raw = client.chat.completions.with_raw_response.create(model="m", messages=messages, tools=TOOLS)
    print(raw.headers["x-memory-status"])
    messages.append(raw.parse().choices[0].message.model_dump(exclude_none=True))
    for call in messages[-1].get("tool_calls", []):
        output = json.dumps(ORDERS * 8)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
print(messages[-1]["content"])
"""


def test_the_proxy_of_the_pages(model, folder):
    """Installed by a pip that does nothing, on a free port."""
    pytest.importorskip("fastapi", reason="needs the extra service")
    shown = {b.commands() for b in EVERY if b.reason == "test_the_proxy_of_the_pages"}
    lines = {tuple(" ".join(shlex.split(line, comments=True)) for line in s.splitlines()) for s in shown}
    assert len(lines) == 1, "the pages give different commands"
    assert len(next(iter(lines))) == 3
    port = str(free_port())
    (folder / "my_agent.py").write_text(f"TOOLS, ORDERS = {TOOLS!r}, {ORDERS!r}\n{AGENT}")
    out, _ = run_commands(
        shown.pop().replace("8767", port), folder, OPENAI_API_KEY="x", OPENAI_BASE_URL=model.base_url,
        MEMORY_BANK_SERVICE__PORT=port, MEMORY_BANK_SERVICE__DATABASE="bank.db",
        MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__HISTORY_BUDGET="1000",
        MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__REFRESH_AFTER="0",
    )  # fmt: skip
    assert out.splitlines()[-1] == "ORD-1 is late."
    assert "rebuilt" in out
    listed, _ = run_commands("memory-bank bank sessions --db bank.db --json", folder)
    assert json.loads(listed)["sessions"][0]["records"] == 8


def test_the_command_of_the_readme(model, folder):
    """``run`` before a program that makes requests, and before one that makes none, as written."""
    pytest.importorskip("fastapi", reason="needs the extra service")
    marked = [b for b in EVERY if b.reason == "test_the_command_of_the_readme"]
    block, *others = sorted(marked, key=lambda b: b.page != "README.md")
    assert all(b.commands() in block.commands() for b in others)
    (folder / "bin" / "claude").write_text('#!/bin/sh\necho "asks $ANTHROPIC_BASE_URL"\n')
    (folder / "bin" / "claude").chmod(0o755)
    (folder / "my_agent.py").write_text(f"TOOLS, ORDERS = {TOOLS!r}, {ORDERS!r}\n{AGENT}")
    out, err = run_commands(
        block.commands(), folder, OPENAI_API_KEY="x", OPENAI_BASE_URL=model.base_url, HOME=str(folder),
        XDG_DATA_HOME=str(folder / "data"), MEMORY_BANK_SERVICE__PORT="1",
    )  # fmt: skip
    assert re.search(r"^asks http://127\.0\.0\.1:\d+$", out, re.M)
    assert out.splitlines()[-1] == "ORD-1 is late."
    assert re.search(r"model requests; [\d,]+ tokens sent, [\d,]+ without memory \(\d+% less\)", err)


@pytest.mark.long
def test_the_tutorial(folder):
    """Its files and commands, in one shell, from top to bottom; what its ``text`` blocks show is printed."""
    pytest.importorskip("fastapi", reason="needs the extra service")
    script, shown = [], []
    for block in blocks("docs/tutorial.md"):
        if block.title:
            script.append(f"cat > {block.title} <<'END OF FILE'\n{block.code}END OF FILE")
        elif block.language == "console":
            script.append(block.commands())
        elif block.language == "text":
            shown += block.code.splitlines()
    data = {"XDG_DATA_HOME": str(folder / "data"), "MEMORY_BANK_SERVICE__PORT": "0"}
    out, err = run_commands("\n".join([*script, "kill %1"]), folder, PYTHONUNBUFFERED="1", **data)
    figures = r"\d[\d,.]*(?= tokens| without| paid|% less)"  # they depend on the tokenizer
    printed = [re.sub(figures, "N", line) for line in (out + err).splitlines()]
    shown = [re.sub(figures, "N", line) for line in shown]
    assert not Counter(shown) - Counter(printed), out + err


def test_the_demo_and_the_pages_tell_the_same_numbers(capsys):
    """Shares of the dollars in README, the first page and the tutorial are those that ``memory-bank demo`` prints."""
    shares = []
    for model in ("claude-sonnet-5-5", "claude-sonnet-4-6"):
        demo(model)
        printed = capsys.readouterr().out
        shares.append(dict(re.findall(r"^(memory_bank|keep last 5) +\$\S+ +(\d+)%", printed, re.M)))
    newest, older = (share["memory_bank"] for share in shares)
    said = (
        f"166 tool calls costs **{newest}% of the dollars** that it costs without memory at the prices of Claude "
        f"Sonnet 5.5, and {older}% at those of Claude Sonnet 4.6"
    )
    tutorial = (
        f"costs {newest}% of what it costs without. With only its last five interactions it costs "
        f"{shares[0]['keep last 5']}%"
    )
    for page, sentence in {"README.md": said, "docs/index.md": said, "docs/tutorial.md": tutorial}.items():
        assert sentence in " ".join((ROOT / page).read_text().split()), f"{page} should say: {sentence}"


@pytest.mark.long
def test_the_clients_of_the_page_are_known(model, folder):
    """``run`` gives each coding agent the address of the service, ``connect`` knows it, ``serve`` takes the options."""
    pytest.importorskip("fastapi", reason="needs the extra service")
    page = [b for b in EVERY if b.reason == "test_the_clients_of_the_page_are_known"]
    lines = [line for b in page for line in b.commands().splitlines()]
    programs = {line.split(" -- ")[1] for line in lines if " run -- " in line}
    assert programs == {"claude", "codex", "opencode", "python my_agent.py"}
    data = {"XDG_DATA_HOME": str(folder / "data"), "HOME": str(folder), "OPENAI_BASE_URL": model.base_url}
    for client in ("claude", "codex", "opencode"):
        (folder / "bin" / client).write_text(
            '#!/bin/sh\necho "got $@ $ANTHROPIC_BASE_URL $OPENAI_BASE_URL"\n'
        )
        (folder / "bin" / client).chmod(0o755)
        out, err = run_commands(f"memory-bank run -- {client}", folder, **data)
        assert re.search(r"^got .*http://127\.0\.0\.1:\d+", out)
        assert model.base_url not in out
        assert "no model request came" in err
    known = ["claude-code", "codex", "opencode"]
    assert [line.split()[2] for line in lines if " connect " in line] == known
    run_commands("\n".join(f"memory-bank connect {name} --write" for name in known), folder, **data)
    assert (folder / ".claude" / "settings.json").exists()
    [serving] = [line for line in lines if "--upstream" in line]
    run_commands(f"timeout 4 {serving} --port 0 || test $? = 124", folder, **data)
    run_commands("memory-bank bank sessions; memory-bank doctor || test $? = 1", folder, **data)


@pytest.mark.installs
def test_the_readme_in_an_empty_environment(model, tmp_path):
    """Its commands as written, and its code, in a copy of the checkout, with an empty home: asks the package index."""
    copy, home = tmp_path / "checkout", tmp_path / "home"
    home.mkdir()
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    subprocess.run([sys.executable, "-m", "venv", copy], check=True)
    (copy / "my_agent.py").write_text(f"TOOLS, ORDERS = {TOOLS!r}, {ORDERS!r}\n{AGENT}")
    page = [b for b in blocks("README.md") if b.mark != "not run"]
    code = "\n".join(b.code for b in page if b.language == "python")
    tools = f"import json\nTOOLS, ORDERS = {TOOLS!r}, {ORDERS!r}\n{inspect.getsource(run_tool)}"
    (copy / "library.py").write_text(f"{tools}\n{code}\n")
    commands = [b.commands() for b in page if b.language == "console"]
    (copy / "bin" / "claude").write_text("#!/bin/sh\n")
    (copy / "bin" / "claude").chmod(0o755)
    port = str(free_port())
    out, _ = run_commands(
        "\n".join([*commands, "memory-bank bank sessions --json", f"OPENAI_BASE_URL={model.base_url} python library.py"])
        .replace("8767", port),
        copy, HOME=str(home), XDG_DATA_HOME="", PYTHONPATH="", OPENAI_API_KEY="x", OPENAI_BASE_URL=model.base_url,
        MEMORY_BANK_SERVICE__PORT=port, PIP_QUIET="1", PIP_DISABLE_PIP_VERSION_CHECK="1",
    )  # fmt: skip
    assert model.refused == []
    assert out.count("ORD-1 is late.") == 2
    assert '"records": 8' in out  # of the agent, in the default bank
    assert "has words of the query" in out


# -- marks and links


def test_what_is_not_run_says_why_and_is_little():
    tests = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    for block in EVERY:
        assert block.language in (*RUN, "json", "text", "js"), f"{block.page}: {block.language!r}"
        assert block.language != "js" or block.mark == "run by", f"{block.page}: no test runs it"
        if block.mark == "run by":
            assert f"def {block.reason}(" in tests, f"{block.page}: {block.reason}"
    left = [b for b in EVERY if b.mark == "not run"]
    assert all(re.match(r"(takes|needs|they|installs) ?\w+", b.reason) for b in left)
    benchmarks = [b for b in left if b.page.startswith("docs/benchmarks/")]
    assert len(left) - len(benchmarks) <= 8


def test_commands_that_are_not_run_name_what_exists():
    """Their scripts and configurations; options are those of some benchmark."""
    source = "".join(p.read_text() for p in (ROOT / "benchmarks").glob("*.py"))
    for block in (b for b in EVERY if b.language == "console" and b.mark == "not run"):
        for line in block.commands().replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for word in words:
                if re.match(r"benchmarks/.*\.(py|toml)$", word):
                    assert (ROOT / word).exists(), f"{block.page}: {word}"
            if words[:1] == ["python"]:
                options = [w for w in words if w.startswith("--") and "=" not in w]
                assert [o for o in options if f'"{o}"' not in source] == [], f"{block.page}: {line}"


def hooks():
    """The module that makes the site's generated pages."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchor(title: str) -> str:
    """Where a heading is linked to."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", *PAGES])
def test_links_lead_somewhere(name):
    generated = set(re.findall(r'^        "([\w/]+\.md)": ', (ROOT / "docs" / "hooks.py").read_text(), re.M))
    prose = BLOCK.sub("", (ROOT / name).read_text())
    for target, place in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", prose):
        path = ((ROOT / name).parent / target).resolve() if target else ROOT / name
        made = path.is_relative_to(ROOT / "docs") and str(path.relative_to(ROOT / "docs")) in generated
        assert path.exists() or made, target
        if place and path.exists():
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            assert place in map(anchor, headings), f"{target}#{place}"


def test_commits_that_show_how_a_thing_is_added_changed_what_their_row_names():
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add")[2].partition("## Rules")[0]
    rows = [row.split(" | ") for row in table.splitlines() if re.search(r"`[0-9a-f]{8}`", row)]
    assert len(rows) >= 9
    changed: dict[str, str] = {}
    for added, _, _, shown in rows:
        show = ["git", "show", "--name-only", "--format=", *re.findall(r"`([0-9a-f]{8})`", shown), "--"]
        changed[added] = subprocess.run(show, cwd=ROOT, check=False, capture_output=True, text=True).stdout
    if not any(changed.values()):
        pytest.skip("this checkout has no history")
    for added, edited, _, _ in rows:
        names = re.findall(r"`([\w/]+\.\w+)`", edited)
        files = "|".join(re.escape(name).replace("NAME", r"\w+") for name in names)
        assert re.search(rf"/(?:{files})$", changed[added], re.M), added


def test_generated_pages_name_every_verb_setting_route_and_public_name():
    pytest.importorskip("fastapi", reason="needs the extra service")
    import memory_bank
    from memory_bank.config import STRATEGY_TYPES, MemoryBankSettings, ServiceSettings

    pages = hooks().generated()
    settings = pages["reference/settings.md"]
    names = {*MemoryBankSettings.model_fields, *ServiceSettings.model_fields} - {"type"}
    assert [n for n in sorted(names) if f"| `{n}` |" not in settings] == []
    assert [t for t in STRATEGY_TYPES if f'type = "{t}"' not in settings] == []
    for verb in ("serve", "lab replay", "keys create", "bank purge"):
        assert f"memory-bank {verb}" in pages["reference/cli.md"]
    for route in ("GET /v1/sessions", "POST /v1/sessions/{name}/context"):
        assert f"## {route}\n" in pages["reference/http.md"]
    shown = "".join(pages[f"reference/{n}.md"] for n in ("library", "history"))
    errors = {n for n in memory_bank.__all__ if n.endswith("Error")}
    assert [n for n in memory_bank.__all__ if n not in errors and f".{n}\n" not in shown] == []


def test_the_readme_is_short_and_every_page_is_in_the_navigation():
    assert (ROOT / "README.md").read_text().count("\n") <= 130
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = {p.removeprefix("docs/") for p in PAGES if p.startswith("docs/")}
    assert [p for p in sorted(pages) if p not in navigation and not p.startswith("decisions/")] == []


# -- the architecture


def tree_of(text: str) -> set[str]:
    """The paths that an annotated tree names, relative to the package; folders end in a slash."""
    [block] = re.findall(r"```\nsrc/memory_bank/\n(.*?)```", text, re.S)
    found: set[str] = set()
    folders: list[str] = []
    for line in block.splitlines():
        lead, names = re.fullmatch(r"((?:│ )*)[├└] ((?:[\w./]+(?:, (?=\w+\.py))?)+) .*", line).groups()  # type: ignore[union-attr]
        folder = "".join(folders[: len(lead) // 2])
        for name in names.split(", "):
            found.add(folder + name)
            if name.endswith("/"):
                folders[len(lead) // 2 :] = [name]
    return found


def test_the_tree_in_architecture_names_every_folder_and_nothing_else():
    package = ROOT / "src" / "memory_bank"
    named = tree_of((ROOT / "ARCHITECTURE.md").read_text())
    there = {
        f"{p.relative_to(package)}/" if p.is_dir() else str(p.relative_to(package))
        for p in package.rglob("*")
        if "__pycache__" not in p.parts
        and (p.is_dir() or (p.parent == package and p.name not in ("__init__.py", "__main__.py", "py.typed")))
    }
    assert there - named == set(), "not in the tree"
    assert named - there == set(), "in the tree, but not there"
    assert (ROOT / "ARCHITECTURE.md").read_text().count("\n") <= 200


def test_every_decision_is_in_the_index():
    pages = [p for p in sorted((ROOT / "docs" / "decisions").glob("*.md")) if p.name != "index.md"]
    titles = [(p.name, title) for p in pages for title in re.findall(r"^## (.*)", p.read_text(), re.M)]
    index = (ROOT / "docs" / "decisions" / "index.md").read_text()
    assert sorted(re.findall(r"^- \[(.*)\]\((.*)\)$", index, re.M)) == sorted(
        (title, f"{page}#{anchor(title)}") for page, title in titles
    )


def test_the_attacks_of_the_makefile_are_those_of_the_threat_model():
    table = (ROOT / "docs/security.md").read_text().split("## Who is trusted with what")[1].split("\n## ")[0]
    shown = set(re.findall(r"`(tests/\S+\.py)`", table)) - {"tests/service/test_page_in_browser.py"}
    listed = (ROOT / "Makefile").read_text().split("ATTACKS :=")[1].split("\n\n")[0].replace("\\\n", " ")
    assert {name.partition("::")[0] for name in listed.split()} == shown
    assert all((ROOT / name).exists() for name in shown)
