"""Measures the size of the house and the path of a request through it; fails where a figure is above .ci/house.json.

    make house                  # prints the figures and their bounds
    make house HOUSE=--list     # and the functions that ran; * those under 6 lines with one caller
    make house HOUSE=--write    # makes these figures the bounds
    make house HOUSE=--features # prints the lines of each feature, and who named it (.ci/features.toml)

A recorded run (examples/) is sent as chat requests through the application to a scripted model on loopback. Counted
are the functions of the package with a name that ran for a request, in all threads, until nothing runs any more.
Frames are the package's own on the stack of one thread, at the deepest call. A stay of the request's messages is a
function that got a list of them as an argument. What opens a connection to the database is not counted: whether the
pool has one is chance.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import logging
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter, defaultdict
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx2
from pydantic import BaseModel

import memory_bank
from memory_bank import config
from memory_bank.service.app import create_app
from memory_bank.testing import ScriptedServer, say

ROOT = Path(__file__).parents[1]
PACKAGE = str(Path(memory_bank.__file__).parent) + "/"
BOUNDS = ROOT / ".ci" / "house.json"
RUN = ROOT / "examples" / "invoice-check.jsonl"
CALLS = 12  # that the measured request without a fold has at least
QUIET = 0.6  # seconds without a call after which nothing runs any more, and the service reads its keys again
POINTS = {  # where frames are counted: file and function
    "Upstream.send": ("service/proxy/upstream.py", "Upstream.send"),
    "the insert of a record": ("bank/stores.py", "FactStore.insert"),
    "a shortened turn": ("context/evidence.py", "shorten_turn"),
}
OPENING = {("bank/sqlite.py", "Sqlite._open"), ("bank/sqlite.py", "Sqlite.open_engine.<locals>._configure")}


class Request:
    """What ran for a request with some ``messages``, filled in by ``profile``."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self.messages = messages
        self.last = time.monotonic()  # when a function of the package was last called
        self.functions: set[CodeType] = set()
        self.callers: defaultdict[CodeType, set[CodeType]] = defaultdict(set)
        self.stays: set[CodeType] = set()
        self.frames: Counter[str] = Counter()

    def profile(self, frame: FrameType) -> None:
        """Count a call of a function of the package."""
        code = frame.f_code
        self.last = time.monotonic()
        if code.co_name.startswith("<") or opens_connection(frame):  # a lambda, a generator, a comprehension
            return
        self.functions.add(code)
        if frame.f_back is not None:
            self.callers[code].add(frame.f_back.f_code)
        for point, place in POINTS.items():
            if place == (module_of(code), code.co_qualname):
                self.frames[point] = max(self.frames[point], own_frames(frame))
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if code not in self.stays and any(self._are_messages(frame.f_locals.get(name)) for name in names):
            self.stays.add(code)

    def _are_messages(self, value: Any) -> bool:
        is_long = isinstance(value, (list, tuple)) and len(value) >= len(self.messages) > 1
        return is_long and isinstance(value[0], dict) and value[0].get("role") == self.messages[0]["role"]

    async def is_over(self) -> None:
        """Wait until nothing runs any more."""
        until = time.monotonic() + 60
        while time.monotonic() - self.last < QUIET:
            assert time.monotonic() < until, "a function of the package runs at least twice a second"
            await asyncio.sleep(QUIET / 10)

    def figures(self, name: str) -> dict[str, int]:
        modules = {module_of(code) for code in self.functions}
        return {f"functions, {name}": len(self.functions), f"modules, {name}": len(modules)}


def module_of(code: CodeType) -> str:
    return code.co_filename.removeprefix(PACKAGE)


def opens_connection(frame: FrameType | None) -> bool:
    """Whether the frame, or one that it was called from, opens a connection to the database."""
    while frame is not None:
        if (module_of(frame.f_code), frame.f_code.co_qualname) in OPENING:
            return True
        frame = frame.f_back
    return False


def own_frames(frame: FrameType | None) -> int:
    """The functions of the package on the stack, the given one included."""
    n = 0
    while frame is not None:
        n += frame.f_code.co_filename.startswith(PACKAGE)
        frame = frame.f_back
    return n


def lines_by_room() -> Counter[str]:
    """The lines of each folder of the package, down to its second level; "." for modules at the top."""
    rooms: Counter[str] = Counter()
    for path in Path(PACKAGE).rglob("*.py"):
        folder = path.relative_to(PACKAGE).parent
        rooms["/".join(folder.parts[:2]) or "."] += path.read_text().count("\n")
    return rooms


def size() -> dict[str, int]:
    """The figures of the source and its documentation. Settings are those of every table of the configuration."""
    tables = [t for t in vars(config).values() if inspect.isclass(t) and issubclass(t, BaseModel)]
    return {
        "lines": sum(lines_by_room().values()),
        "modules": len(list(Path(PACKAGE).rglob("*.py"))),
        "settings": sum(len(t.__annotations__.keys() & t.model_fields.keys() - {"type"}) for t in tables),
        "decisions": sum(p.read_text().count("\n## ") for p in (ROOT / "docs" / "decisions").glob("*.md")),
    }


class Agent:
    """Sends a recorded run's requests through the application. ``with``: the application runs."""

    def __init__(self, folder: Path, upstream: str) -> None:
        service = {"upstream": upstream, "database": str(folder / "bank.db"), "memory_timeout": 60.0}
        shipped = config.load_config().model_dump(exclude={"service"})
        shipped["memory_strategies"]["memory_bank"]["token_encoding"] = "approximate"  # the same everywhere
        shipped["memory_strategies"]["memory_bank"]["first_sight"] = 0  # a fold alone rebuilds a request
        app = create_app(config.Config(**shipped, service=service))
        self._run = json.loads(RUN.read_text().splitlines()[0])
        self._http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://localhost")
        self.running = app.router.lifespan_context(app)
        self.requests = [
            self._run["messages"][:i] for i, m in enumerate(self._run["messages"]) if m["role"] == "assistant"
        ]

    async def send(self, messages: list[dict[str, Any]]) -> str:
        """What became of the context of a request, as the answer's header says."""
        body = {"model": "gpt-5", "messages": messages, "tools": self._run["tools"]}
        answer = await self._http.post(
            "/v1/chat/completions", json=body, headers={"authorization": "Bearer k"}
        )
        assert answer.status_code == 200, answer.text
        return str(answer.headers["x-memory-status"])

    async def measure(self, messages: list[dict[str, Any]]) -> Request:
        """What runs for a request. Nothing else runs: what earlier ones began is over."""
        global current
        current = Request(messages)
        await current.is_over()
        request = current = Request(messages)
        await self.send(messages)
        await request.is_over()
        current = None
        return request


current: Request | None = None
"""Which request is measured."""


def profile(frame: FrameType, event: str, _: Any) -> None:
    """The profiler of every thread."""
    request = current
    if request is None or event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
        return
    if "process_request_thread" not in threading.current_thread().name:  # of the scripted model
        request.profile(frame)


async def measured_requests(folder: Path) -> dict[str, Request]:
    """One with new calls, the same once more, and the first one with a fold."""
    threading.setprofile(profile)
    sys.setprofile(profile)
    with ScriptedServer(itertools.repeat(say("done"))) as server:
        agent = Agent(folder, server.base_url)
        async with agent.running:
            folded = 0
            while await agent.send(agent.requests[folded]) != "rebuilt":
                folded += 1
        (folder / "bank.db").unlink()
        agent, done = Agent(folder, server.base_url), dict[str, Request]()
        async with agent.running:
            for messages in agent.requests[:folded]:
                if not done and sum(m["role"] == "tool" for m in messages) >= CALLS:
                    done = {name: await agent.measure(messages) for name in ("new calls", "nothing new")}
                else:
                    await agent.send(messages)
            return done | {"a fold": await agent.measure(agent.requests[folded])}


def path() -> tuple[dict[str, int], dict[str, Request]]:
    """The figures of the measured requests, and these."""
    with tempfile.TemporaryDirectory() as folder:
        requests = asyncio.run(measured_requests(Path(folder)))
    figures = {k: v for name, request in requests.items() for k, v in request.figures(name).items()}
    frames = requests["new calls"].frames | requests["a fold"].frames
    for point, place in POINTS.items():
        assert point in frames, f"{place} did not run: name the function that does {point} in {__file__}"
        figures[f"frames to {point}"] = frames[point]
    return figures | {"stays of the messages": len(requests["new calls"].stays)}, requests


def features() -> list[tuple[dict[str, Any], int]]:
    """The features of ``.ci/features.toml`` with their lines, most first; each module is in the first that has it."""
    listed: list[dict[str, Any]] = tomllib.loads((ROOT / ".ci" / "features.toml").read_text())["feature"]
    lines: Counter[str] = Counter()
    for file in Path(PACKAGE).rglob("*.py"):
        module = file.relative_to(PACKAGE).as_posix()
        lines[next(f["name"] for f in listed if any(fnmatch(module, m) for m in f["modules"]))] += (
            file.read_text().count("\n")
        )
    return sorted(((f, lines[f["name"]]) for f in listed), key=lambda each: -each[1])


def main(options: list[str]) -> int:
    """Print the figures; 1 where one is above its bound."""
    if "--features" in options:
        for feature, lines in features():
            core = "core; " if feature.get("core") else ""
            print(f"{lines:7,}  {feature['name']} ({core}{feature['named']})")
        return 0
    logging.disable()
    bounds = json.loads(BOUNDS.read_text())
    figures, requests = path()
    if any(figure > bounds.get(name, 0) for name, figure in figures.items()):
        figures, requests = path()  # on a busy machine a lock may be waited for, or work put off longer
    figures = size() | figures
    print("".join(f"{lines:7,}  {room}\n" for room, lines in lines_by_room().most_common()))
    for name, figure in figures.items():
        print(f"{figure:7,}  {name}" + (f" (bound {bounds[name]:,})" if name in bounds else ""))
    if "--list" in options:
        for name, request in requests.items():
            print(f"\n{name}:")
            by_module: defaultdict[str, list[str]] = defaultdict(list)
            for code in request.functions:
                lines = max(line or 0 for _, _, line in code.co_lines()) - code.co_firstlineno + 1
                is_small = lines < 6 and len(request.callers[code]) == 1
                by_module[module_of(code)].append(code.co_qualname + "*" * is_small)
            for module, names in sorted(by_module.items()):
                print(f"  {module}: {', '.join(sorted(names))}")
    if "--write" in options:
        BOUNDS.write_text(json.dumps(figures, indent=2) + "\n")
        return 0
    risen = [name for name, figure in figures.items() if figure > bounds.get(name, 0)]
    for name in risen:
        print(
            f"{name}: {figures[name]:,} is more than {bounds.get(name, 0):,}. Make it smaller, or raise the bound in "
            f"{BOUNDS.relative_to(ROOT)} and say why in CHANGELOG.md.",
            file=sys.stderr,
        )
    return 1 if risen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
