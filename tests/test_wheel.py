"""The wheel carries what it needs and works from any folder, the checkout out of sight."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import environment

pytestmark = pytest.mark.long


ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    done = subprocess.run([*pip, "-w", str(out), str(ROOT)], capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr.strip().splitlines()[-1:]}")
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a folder of its own."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--target", str(target), str(wheel)], check=True, timeout=300)
    return target


def test_what_is_in_it(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = ["prompts/observer.prompt.md", "config.toml", "invoice-check.jsonl"]
    assert {f"memory_bank/_shipped/{name}" for name in shipped} <= names
    modules = {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src").rglob("*.py")}
    assert modules <= names
    page = {
        p.relative_to(ROOT / "src").as_posix()
        for p in (ROOT / "src/memory_bank/service/page/static").iterdir()
    }
    assert len(page) > 10
    assert page <= names
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/", "examples/"))]


def command(installed: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    # -P and the path: neither the folder nor the checkout is looked at before the target
    return subprocess.run(
        [sys.executable, "-P", "-m", "memory_bank", *args],
        env=environment(PYTHONPATH=str(installed)), cwd=cwd, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_it_works_from_any_folder(installed, tmp_path):
    where = "import memory_bank; print(memory_bank.__file__)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", where], env=environment(PYTHONPATH=str(installed)), cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.startswith(str(installed))
    demo = command(installed, tmp_path, "demo")
    assert demo.returncode == 0, demo.stderr
    assert "memory_bank shows it:" in demo.stdout
    trace = str(ROOT / "examples" / "code-fix.jsonl")
    replay = command(installed, tmp_path, "lab", "replay", trace, "--db", "bank.db", "--json")
    assert replay.returncode == 0, replay.stderr
    assert json.loads(replay.stdout)["traces"] == 1
    assert (tmp_path / "bank.db").exists()


def test_what_ships_is_found_in_the_wheel(installed, tmp_path):
    code = (
        "from memory_bank.shipped import shipped_file, shipped_trace\n"
        "print(shipped_file('config.toml'), shipped_file('prompts/observer.prompt.md'),"
        " shipped_trace('invoice-check.jsonl'), sep='\\n')"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(PYTHONPATH=str(installed)), cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for path in found.stdout.splitlines():
        assert path.startswith(str(installed / "memory_bank" / "_shipped"))
        assert Path(path).is_file()
