"""Real clients run a task of 25 steps through the proxy, against a scripted upstream: a row of a table for each.

``python benchmarks/clients.py [NAME …]`` installs each client by itself under ``.venv-integrations/clients/NAME``
(once; from PyPI or npm), starts the service before a scripted upstream, and gives the client its address in the
environment or, for coding agents, by ``memory-bank connect``. The upstream refuses broken pairs of calls and results,
thinking blocks after a changed prefix and more than four cache marks with 400. Its model reads 25 files by calls, one
a step, and then names two ids, of the first and the fourth file, if its request holds them. ``--installed`` skips
what is not installed yet.

A row tells the largest request as the client made it and as upstream got it, how many sessions memory saw, how many
requests were answered with 4xx, and whether the client printed both ids.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import command_line
from integrations import HOME, ROOT, environment
from memory_bank.config import Config, load_config
from memory_bank.testing import Reply, ScriptedServer, calls, say

STEPS = 25
WANTED = (1, 4)
TASK = (
    f"Read the orders 1 to {STEPS} one after the other; order N is the file orders/N.json. Then name the payment ids "
    f"of the orders {WANTED[0]} and {WANTED[1]}."
)
LIMIT = 300
"""Seconds that a client may take."""

AGENTS = Path(__file__).with_name("client_agents.py")
TYPESCRIPT = ROOT / "docs" / "howto" / "typescript.md"
NODE_TOOLS = """import { readFileSync } from "node:fs";
export const getOrder = ({ number }) => readFileSync(`orders/${number}.json`, "utf8");
"""


@dataclass(frozen=True)
class Run:
    """A run of a client: an empty home, a folder with the orders, the service's address, what the client is told."""

    home: Path
    folder: Path
    url: str
    task: str = TASK

    def environment(self, address: str) -> dict[str, str]:
        """The variables of a client, and nothing of this process's own that names a service.

        ``address``: the variable that takes the address of OpenAI's API.
        """
        kept = {k: os.environ[k] for k in ("PATH", "LANG", "TIKTOKEN_CACHE_DIR") if k in os.environ}
        return kept | {
            "HOME": str(self.home),
            "TERM": "dumb",
            address: f"{self.url}/v1",
            "OPENAI_API_KEY": "sk-scripted",
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "sk-scripted",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OTEL_SDK_DISABLED": "true",
            "MSWEA_CONFIGURED": "true",
        }


@dataclass(frozen=True)
class Client:
    """A client: its package (the version in the table), what is installed, its API, and the command that runs it.

    ``connect``: its configuration is written by this verb, and its environment has no address. ``address``: the
    variable that takes the address of OpenAI's API. ``variables`` are added to its environment.
    """

    package: str
    packages: tuple[str, ...]
    route: str
    command: Callable[[Path, Run], list[str]]
    npm: bool = False
    connect: str = ""
    address: str = "OPENAI_BASE_URL"
    variables: dict[str, str] = field(default_factory=dict)
    name: str = ""

    @property
    def shown(self) -> str:
        """Its name in the table."""
        return self.name or self.package


def agent(
    name: str,
    package: str,
    *packages: str,
    route: str = "chat",
    shown: str = "",
    address: str = "OPENAI_BASE_URL",
) -> Client:
    """A client of ``client_agents.py``."""

    def command(place: Path, run: Run) -> list[str]:
        return [str(python_of(place)), str(AGENTS), name, run.task]

    return Client(package, (package, *packages), route, command, address=address, name=shown)


def typescript(heading: str, package: str, *packages: str, route: str = "chat", shown: str = "") -> Client:
    """A recipe of the page on TypeScript, by its heading."""

    def command(place: Path, run: Run) -> list[str]:
        code = recipe(heading)
        made = place / f"run-{run.folder.parent.name}"
        made.mkdir()
        (made / "tools.mjs").write_text(NODE_TOOLS)
        (made / "agent.mjs").write_text(code)
        return ["node", str(made / "agent.mjs"), run.task]

    return Client(package, (package, *packages), route, command, npm=True, name=shown)


def recipe(heading: str) -> str:
    """The code under a heading of the page on TypeScript."""
    [code] = re.findall(rf"^## {re.escape(heading)}\n.*?```js\n(.*?)```", TYPESCRIPT.read_text(), re.S | re.M)
    return str(code)


def python_of(place: Path) -> Path:
    """The interpreter of an environment; this one where the client is installed in none of its own."""
    own = place / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


def binary(name: str, *arguments: str) -> Callable[[Path, Run], list[str]]:
    """A command of an npm package, with the task at its end."""
    return lambda place, run: [str(place / "node_modules" / ".bin" / name), *arguments, run.task]


def opencode_by_chat(place: Path, run: Run) -> list[str]:
    """opencode with a provider of the Chat Completions API in the configuration of the folder."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{run.url}/v1", "apiKey": "sk-scripted"},
        "models": {"scripted": {"name": "scripted", "limit": {"context": 400_000, "output": 8_000}}},
    }
    (run.folder / "opencode.json").write_text(json.dumps({"provider": {"memory_bank": provider}}))
    return binary("opencode", "run", "--model", "memory_bank/scripted")(place, run)


CLIENTS = {
    "claude-code": Client(
        "@anthropic-ai/claude-code", ("@anthropic-ai/claude-code",), "messages",
        binary("claude", "--allowedTools", "Bash", "-p"),
        npm=True, connect="claude-code", name="Claude Code",
        variables={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    "codex": Client(
        "@openai/codex", ("@openai/codex",), "responses",
        binary("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
        npm=True, connect="codex", name="Codex",
    ),
    "opencode": Client(
        "opencode-ai", ("opencode-ai",), "responses", binary("opencode", "run", "--model", "openai/gpt-5"),
        npm=True, connect="opencode", name="opencode",
    ),
    "opencode-messages": Client(
        "opencode-ai", ("opencode-ai",), "messages",
        binary("opencode", "run", "--model", "anthropic/claude-sonnet-4-5"),
        npm=True, connect="opencode", name="opencode",
    ),
    "opencode-chat": Client("opencode-ai", ("opencode-ai",), "chat", opencode_by_chat, npm=True, name="opencode"),
    "qwen-code": Client(
        "@qwen-code/qwen-code", ("@qwen-code/qwen-code",), "chat",
        binary("qwen", "--auth-type", "openai", "--model", "scripted", "--yolo", "-p"),
        npm=True, name="qwen-code",
    ),
    "openai-node": typescript("openai", "openai", shown="openai (Node)"),
    "ai": typescript("Vercel's ai", "ai", "@ai-sdk/openai", "zod", route="responses", shown="ai (Node)"),
    "langchain-js": typescript(
        "LangChain.js", "langchain", "@langchain/openai", "@langchain/core", "zod", shown="langchain (Node)"
    ),
    "claude_agent_sdk": agent("claude_agent_sdk", "claude-agent-sdk", route="messages", shown="Claude Agent SDK"),
    "anthropic": agent("anthropic", "anthropic", route="messages"),
    "openai": agent("openai", "openai"),
    "openai_responses": agent("openai_responses", "openai", route="responses"),
    "openai_agents": agent("openai_agents", "openai-agents", route="responses"),
    "langchain": agent("langchain", "langchain", "langchain-openai"),
    "deepagents": agent("deepagents", "deepagents", "langchain-openai", route="responses"),
    "pydantic_ai": agent("pydantic_ai", "pydantic-ai-slim", "pydantic-ai-slim[openai]"),
    "llama_index": agent("llama_index", "llama-index-core", "llama-index-llms-openai", address="OPENAI_API_BASE"),
    "google_adk": agent("google_adk", "google-adk", "litellm", "mcp"),
    "litellm": agent("litellm", "litellm", "mcp"),
    "crewai": agent("crewai", "crewai"),
    "autogen": agent("autogen", "autogen-agentchat", "autogen-ext[openai]"),
    "ag2": agent("ag2", "ag2", "ag2[openai]"),
    "agno": agent("agno", "agno", "openai"),
    "haystack": agent("haystack", "haystack-ai"),
    "dspy": agent("dspy", "dspy", "mcp"),
    "mini_swe_agent": agent("mini_swe_agent", "mini-swe-agent", "mcp"),
    "openhands": agent("openhands", "openhands-sdk"),
    "smolagents": agent("smolagents", "smolagents", "smolagents[openai]"),
}  # fmt: skip


class Orders:
    """The files of a run: some kB each, with a payment id that stands nowhere else."""

    def __init__(self, seed: str) -> None:
        self._seed = seed

    def payment(self, number: int) -> str:
        """The id of an order's payment."""
        rng = random.Random(f"{self._seed} {number}")
        return "PAY-" + "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=10))

    def text(self, number: int) -> str:
        """The file of an order."""
        rng = random.Random(f"{self._seed} lines {number}")
        lines = [{"sku": f"SKU-{rng.randrange(10**7)}", "count": rng.randrange(9)} for _ in range(70)]
        order = {"order": f"<order {number}>", "payment": self.payment(number), "lines": lines}
        return json.dumps(order, indent=None)

    def write(self, folder: Path) -> None:
        """All files."""
        (folder / "orders").mkdir(parents=True)
        for number in range(1, STEPS + 1):
            (folder / "orders" / f"{number}.json").write_text(self.text(number) + "\n")


SHELLS: dict[str, Callable[[str], Any]] = {
    "Bash": lambda c: {"command": c, "description": "Read an order"},
    "bash": lambda c: {"command": c, "description": "Read an order"},
    "exec_command": lambda c: {"cmd": c},
    "shell_command": lambda c: {"command": c},
    "shell": lambda c: {"command": ["bash", "-c", c]},
    "terminal": lambda c: {"command": c},
    "run_shell_command": lambda c: {"command": c, "is_background": False},
    "exec": lambda c: f"const r = await tools.exec_command({{cmd: {json.dumps(c)}}});\ntext(r.output);\n",
}
"""The shells that coding agents offer, with the arguments that run a command."""

ENDS = {"final_answer": "answer", "submit": "answer"}
"""Tools by which some agents end, with the argument that takes the answer."""

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command by which mini-swe-agent ends."""


def tool_names(holder: Any) -> set[str]:
    """The names of all tools of a request; Codex offers them in an item, in namespaces."""
    names: set[str] = set()
    for tool in holder.get("tools") or ():
        names |= {str(tool.get("name") or (tool.get("function") or {}).get("name"))} | tool_names(tool)
    for item in holder["input"] if isinstance(holder.get("input"), list) else ():
        names |= tool_names(item)
    return names


def sentence(payments: Iterable[str]) -> str:
    """The model's answer."""
    return f"The payments are {' and '.join(payments)}."


class Model:
    """The scripted model: it reads the order after the last one that it saw.

    It uses only ids that its request holds. Where one is missing in the end it asks the memory tools once, if they
    are offered; an id that is still missing is read once more from its order, and ``again`` counts these.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._seen = 0
        self._asked: set[int] = set()
        self._again: set[int] = set()

    @property
    def again(self) -> int:
        """How many orders it had to read twice."""
        return len(self._again)

    def __call__(self, body: dict[str, Any]) -> Reply:
        offered = tool_names(body)
        reading = next((t for t in ("get_order", *SHELLS) if t in offered), None)
        if reading is None:
            return say("Payments of orders")
        text = json.dumps(body.get("messages") or body.get("input"))
        self._seen = max(self._seen, *map(int, re.findall(r"<order (\d+)>", text)), 0)
        held = {n: self._orders.payment(n) for n in WANTED if self._orders.payment(n) in text}
        missing = [n for n in WANTED if n not in held and n not in self._again]
        reasons = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive") or body.get("reasoning")
        unasked = [n for n in missing if n not in self._asked]
        if self._seen == STEPS and unasked and "get_record" in offered:
            self._asked |= set(unasked)
            parts = {"path": None, "lines": None, "pattern": "payment"}
            return calls(*(("get_record", {"record": f"#{n}", **parts}) for n in unasked))
        if self._seen < STEPS or missing:
            number = self._seen + 1 if self._seen < STEPS else missing[0]
            if self._seen == STEPS:
                self._again.add(number)
            arguments = (
                {"number": number} if reading == "get_order" else SHELLS[reading](f"cat orders/{number}.json")
            )
            return Reply(
                tool_calls=[(reading, arguments)], reasoning=f"Order {number} is next." if reasons else None
            )
        answer = sentence(held.get(n, "unknown") for n in WANTED)
        end = next((t for t in ENDS if t in offered), None)
        if SUBMIT in text:
            return calls((reading, SHELLS[reading](f"{SUBMIT} && echo '{answer}'")))
        return calls((end, {ENDS[end]: answer})) if end else say(answer)


@dataclass
class Row:
    """What became of a client: ``told`` is why there is no run."""

    name: str
    version: str = "–"
    route: str = ""
    told: str = ""
    full: int = 0
    sent: int = 0
    requests: int = 0
    again: int = 0
    sessions: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    right: bool = False
    seconds: float = 0.0
    output: str = ""

    @property
    def good(self) -> bool:
        """Whether its context shrank in one session, with the right answer and no request refused."""
        return self.right and not self.refused and self.sessions == 1 and self.sent < 0.7 * self.full

    def __str__(self) -> str:
        if self.told:
            return f"| {self.name} | {self.version} | {self.told} | | | | | | | |"
        right = "yes" if self.right else "no"
        return (
            f"| {self.name} | {self.version} | {self.route} | {self.requests} | {self.full / 1000:.0f} | "
            f"{self.sent / 1000:.0f} | {self.again} | {self.sessions} | {right} | {self.refused} |"
        )


HEAD = (
    "| client | version | API | requests | largest request (kB) | as sent (kB) | read again | sessions "
    "| right answer | 4xx |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---|---:|"
)


def place_of(name: str) -> Path:
    """Where a client is installed."""
    return HOME / "clients" / name


def install(name: str) -> Path:
    """Install a client unless it is there. Raises subprocess.CalledProcessError."""
    client, place = CLIENTS[name], place_of(name)
    if not client.npm:
        return environment(place, client.packages).parents[1]
    if not (place / ".ready").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / "package.json").write_text('{"private": true}\n')
        command = ["npm", "install", "--no-audit", "--no-fund", *client.packages]
        subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
        (place / ".ready").touch()
    return place


def version_of(name: str) -> str:
    """The version of a client's package."""
    client, place = CLIENTS[name], place_of(name)
    if client.npm:
        told = json.loads((place / "node_modules" / client.package / "package.json").read_text())
        return str(told["version"])
    shown = f"import importlib.metadata as m; print(m.version({client.package!r}))"
    command = [str(python_of(place)), "-c", shown]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def serving(
    server: ScriptedServer, database: Path, bodies: list[bytes] | None = None, **changed: Any
) -> Iterator[tuple[str, list[Any]]]:
    """The service before a scripted upstream: its address, and what it recorded of each request.

    ``bodies`` gets the body of every request as it came. ``changed``: settings of the service that are not the
    shipped ones.
    """
    import uvicorn

    from memory_bank.service.app import create_app

    upstream = {"upstream": server.base_url, "upstream_anthropic": server.base_url.removesuffix("/v1")}
    settings = {"database": str(database), "memory_timeout": 60.0, **upstream, **changed}
    config = Config(**load_config().model_dump(exclude={"service"}), service=settings)
    app = create_app(config)
    wrapped = app if bodies is None else _keeping(app, bodies)
    served = uvicorn.Server(uvicorn.Config(wrapped, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    while not served.started:
        time.sleep(0.01)
    recorded: list[Any] = []
    app.state.service.exchanges.append(recorded.append)
    try:
        yield f"http://127.0.0.1:{served.servers[0].sockets[0].getsockname()[1]}", recorded
    finally:
        served.should_exit = True
        thread.join(60)


def _keeping(app: Any, bodies: list[bytes]) -> Any:
    """An ASGI application that keeps the bodies of requests to another one."""

    async def run(scope: Any, receive: Any, send: Any) -> None:
        chunks: list[bytes] = []

        async def keep() -> Any:
            message = await receive()
            chunks.append(message.get("body", b""))
            if message["type"] == "http.request" and not message.get("more_body"):
                bodies.append(b"".join(chunks))
            return message

        await app(scope, receive if scope["type"] != "http" else keep, send)

    return run


def run_client(name: str, place: Path, folder: Path) -> Row:
    """Run an installed client in an empty folder."""
    client = CLIENTS[name]
    orders = Orders(name)
    work = folder / "work"
    orders.write(work)
    (folder / "home").mkdir(parents=True)
    row = Row(client.shown, version_of(name), client.route)
    model = Model(orders)
    began = time.perf_counter()
    with (
        ScriptedServer(model, models=("scripted", "gpt-5", "claude-sonnet-4-5")) as server,
        serving(server, folder / "bank.db") as (url, recorded),
    ):
        row.output = output_of_client(client, place, Run(folder / "home", work, url))
    row.seconds = time.perf_counter() - began
    asked = [e for e in recorded if e.api.route == client.route]
    row.requests = len(asked)
    row.full = max((e.received_bytes for e in asked), default=0)
    row.sent = max((len(r.data) for r in server.requests), default=0)
    row.sessions = len({e.session for e in asked if e.session is not None})
    row.refused = sum(1 for e in recorded if e.status is not None and 400 <= e.status < 500)
    row.again = model.again
    row.errors = server.refused
    row.right = sentence(map(orders.payment, WANTED)) in row.output
    return row


def output_of_client(client: Client, place: Path, run: Run, *arguments: str) -> str:
    """What an installed client prints in a run; ``arguments`` are added to its command, before the task."""
    variables = run.environment(client.address) | client.variables
    if client.connect:
        connect = [
            sys.executable,
            "-m",
            "memory_bank",
            "connect",
            client.connect,
            "--url",
            run.url,
            "--write",
        ]
        del variables[client.address], variables["ANTHROPIC_BASE_URL"]
        ours = variables | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        subprocess.run(connect, env=ours, check=True, capture_output=True)
    *command, task = client.command(place, run)
    return output_of([*command, *arguments, task], run.folder, variables)


def output_of(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    """What a command prints; it and its children are ended after the time limit."""
    process = subprocess.Popen(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0] + f"\n[ended after {LIMIT} s]"


def check(name: str, *, installed: bool) -> Row:
    """Install and run a client: its row."""
    client = CLIENTS[name]
    if installed and not (place_of(name) / ".ready").exists():
        return Row(client.shown, told="is not installed here")
    try:
        place = install(name)
    except (subprocess.CalledProcessError, OSError):
        return Row(client.shown, told="does not install")
    with tempfile.TemporaryDirectory(prefix="client-") as folder:
        return run_client(name, place, Path(folder))


def main() -> int:
    """Run from the command line; 1 if a client that ran is not as it should be."""
    parser = command_line(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)}; default: all")
    parser.add_argument("--installed", action="store_true", help="only clients that are installed already")
    parser.add_argument("--verbose", action="store_true", help="print what each client printed")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(CLIENTS):
        parser.error(f"no client {', '.join(sorted(unknown))}: there are {', '.join(CLIENTS)}")
    print(HEAD, flush=True)
    failed = 0
    for name in asked.names or CLIENTS:
        row = check(name, installed=asked.installed)
        print(row, flush=True)
        if not row.told and not row.good:
            failed += 1
            print(row.output[-2000:], *row.errors[:5], sep="\n", file=sys.stderr)
        elif asked.verbose:
            print(row.output, f"{row.seconds:.0f} s", sep="\n", file=sys.stderr)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())
