"""Imports run down: the map of the house, held against every module."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "memory_bank"

# Room → rooms it may import (besides itself). The order is the order of the house, from the ground up.
MAP: dict[str, set[str]] = {
    "errors": set(),
    "records": set(),
    "shipped": set(),
    "faults": set(),
    "pages": set(),
    "closing": set(),
    "ports": {"records"},
    "prompts": {"errors", "shipped"},
    "config": {"errors", "prompts", "records", "shipped"},
    "pricing": {"config"},
    "vectors": {"closing", "errors", "ports"},
    "transcript": {"errors", "ports", "records"},
    "plan": {"pages", "records", "transcript"},
    "models": {"closing", "config", "errors", "ports", "pricing", "prompts", "records", "transcript", "vectors"},
    "selection": {"errors", "transcript"},
    "bank": {
        "closing", "config", "errors", "faults", "models", "plan", "ports", "pricing", "records", "selection", "transcript",
        "vectors",
    },
    "context": {
        "bank", "config", "errors", "faults", "models", "plan", "ports", "pricing", "records", "selection",
        "transcript", "vectors",
    },
    "history": {"bank", "context", "errors", "models", "pages", "ports", "records", "transcript", "vectors"},
    "processor": {"bank", "config", "context", "errors", "plan", "ports", "pricing", "transcript"},
    "orchestrator": {"bank", "closing", "config", "errors", "models", "plan", "pricing", "processor", "records", "transcript"},
    "tools": {"bank", "context", "errors", "ports", "records", "selection", "transcript"},
    "memory": {"bank", "closing", "config", "errors", "plan", "ports", "processor", "records", "tools"},
    "integrations": {"bank", "config", "errors", "history", "plan", "ports", "processor", "tools", "transcript"},
    "testing": {"bank", "closing", "errors", "history", "models", "ports", "records", "transcript", "vectors"},
    "service": {
        "bank", "config", "context", "errors", "faults", "models", "plan", "ports", "pricing", "processor",
        "records", "selection", "shipped", "tools", "transcript",
    },
    "audit": {"config", "context", "errors", "pages", "pricing", "selection", "transcript"},  # and the face
    "cli": {
        "audit", "bank", "config", "context", "errors", "models", "plan", "ports", "pricing", "records", "selection",
        "service", "shipped", "tools", "transcript",
    },
}  # fmt: skip
FACE = {"__init__", "__main__"}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(p for p in parts if p != "__init__") or "memory_bank"] = path
    return found


@cache
def imports_in(path: Path) -> list[ast.Import | ast.ImportFrom]:
    """The import statements of a module."""
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.Import, ast.ImportFrom))]


@cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in imports_in(path):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("memory_bank"):
            if node.module == "memory_bank":
                found |= {f"memory_bank.{a.name}" for a in node.names if a.name != "__version__"}
            else:
                parts = {f"{node.module}.{a.name}" for a in node.names}
                known = parts & modules().keys()
                found |= known
                if known != parts:
                    found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name.startswith("memory_bank.")}
    return found


def test_every_module_is_on_the_map():
    rooms = {room_of(m) for m in modules()} - FACE
    assert rooms == set(MAP)


def test_imports_follow_the_map():
    wrong = []
    for name, path in modules().items():
        room = room_of(name)
        if room in FACE:
            continue
        for target in imports(path):
            if room in ("audit", "cli") and room_of(target) not in MAP:
                continue  # a name of the face
            if room_of(target) != room and room_of(target) not in MAP[room]:
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_the_audit_uses_public_names_only():
    """It imports the face and what packages export themselves; only the command line imports it."""
    packages = {
        f"memory_bank.{p}"
        for p in ("config", "context", "errors", "pages", "pricing", "selection", "transcript")
    }
    wrong = []
    for name, path in modules().items():
        for node in imports_in(path):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("memory_bank"):
                continue
            if (node.module or "").startswith("memory_bank.audit"):
                if room_of(name) not in ("audit", "cli"):
                    wrong.append(f"{name} imports {node.module}")
            elif room_of(name) == "audit":
                if node.module not in {"memory_bank", *packages}:
                    wrong.append(f"{name} imports {node.module}")
                wrong += [f"{name} imports {a.name}" for a in node.names if a.name.startswith("_")]
    assert wrong == []


def test_the_map_runs_down():
    order = list(MAP)
    for room, allowed in MAP.items():
        assert all(order.index(a) < order.index(room) for a in allowed), room


def test_no_circle_within_a_room():
    graph = {
        n: {i for i in imports(p) if i in modules()} for n, p in modules().items() if room_of(n) not in FACE
    }
    done: set[str] = set()

    def visit(node: str, path: tuple[str, ...]) -> None:
        assert node not in path, f"circle: {' → '.join([*path, node])}"
        if node not in done:
            for target in graph.get(node, ()):
                visit(target, (*path, node))
            done.add(node)

    for name in graph:
        visit(name, ())


def test_no_module_is_longer_than_a_thousand_lines_and_each_opens_with_a_sentence():
    for name, path in modules().items():
        text = path.read_text()
        assert text.count("\n") <= 1000, name
        doc = ast.get_docstring(ast.parse(text))
        assert doc and doc.strip().split("\n")[0].strip(), name


def test_nothing_is_patched_away():
    """Fakes ship and real servers run; a Mock may stand for a user's odd object, never for our own parts.

    A test that needs another size, time or fault gives an argument, sets an attribute that the object has, or waits.
    """
    for path in (PACKAGE.parents[1] / "tests").rglob("*.py"):
        if path.name != Path(__file__).name:
            text = path.read_text()
            assert not any(word in text for word in ("import patch", "mock.patch", "mocker", ".setattr(")), (
                path
            )


def test_the_library_never_imports_benchmarks_or_tests():
    for name, path in modules().items():
        every = imports_in(path)
        roots = {(n.module or "").split(".")[0] for n in every if isinstance(n, ast.ImportFrom)} | {
            a.name.split(".")[0] for n in every if isinstance(n, ast.Import) for a in n.names
        }
        assert not roots & {"benchmarks", "tests"}, name
