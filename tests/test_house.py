"""``make check``: every room has tests, and every test file of the service belongs to a room."""

import json
import runpy
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = runpy.run_path(str(ROOT / ".ci" / "check.py"))


def test_every_room_has_tests():
    for room in CHECK["rooms"]():
        assert [path for path in CHECK["tests_of"](room) if not path.exists()] == [], room


def test_every_test_of_the_service_is_checked_with_a_room():
    rooms = [room for room in CHECK["FILES"] if room.startswith("service")]
    checked = {path for room in rooms for path in CHECK["tests_of"](room)}
    files = {
        p for p in (ROOT / "tests" / "service").glob("test_*.py") if "mark.long" not in p.read_text()[:1500]
    }
    assert sorted(files - checked) == []


def test_an_unknown_room_is_a_sentence_with_those_that_are():
    run = [sys.executable, str(ROOT / ".ci" / "check.py"), "kitchen"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith(
        "there is no room 'kitchen': make check ROOM=one of audit, bank"
    )


def test_every_module_belongs_to_a_feature_and_every_pattern_to_modules():
    features = tomllib.loads((ROOT / ".ci" / "features.toml").read_text())["feature"]
    package = ROOT / "src" / "memory_bank"
    modules = {p.relative_to(package).as_posix() for p in package.rglob("*.py")}
    owned = [(m, f["name"]) for f in features for p in f["modules"] for m in modules if fnmatch(m, p)]
    assert sorted(m for m, _ in owned) == sorted(modules)  # each in one
    assert [p for f in features for p in f["modules"] if not any(fnmatch(m, p) for m in modules)] == []
    pytest.importorskip("fastapi", reason="house.py sends requests through the service")
    run = [sys.executable, str(ROOT / ".ci" / "house.py"), "--features"]
    printed = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    lines = sum((package / m).read_text().count("\n") for m in modules)
    assert sum(int(line.split()[0].replace(",", "")) for line in printed) == lines


@pytest.mark.long
def test_a_figure_above_its_bound_fails_and_says_what_to_do(tmp_path):
    pytest.importorskip("fastapi", reason="house.py sends requests through the service")
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for folder in ("docs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    file = tmp_path / ".ci" / "house.json"
    bounds = json.loads(file.read_text())
    file.write_text(json.dumps(dict.fromkeys(bounds, 10**6) | {"settings": bounds["settings"] - 1}))
    run = [sys.executable, str(tmp_path / ".ci" / "house.py")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == (
        f"settings: {bounds['settings']} is more than {bounds['settings'] - 1}. Make it smaller, or raise the bound in "
        ".ci/house.json and say why in CHANGELOG.md.\n"
    )
    assert [name for name in bounds if f"  {name} (bound " not in done.stdout] == []
