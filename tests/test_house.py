"""``make check``: every room has tests, and every test file of the service belongs to a room."""

import runpy
import subprocess
import sys
from pathlib import Path

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
