"""Dockerfile and compose.yaml without Docker: what they copy, set, run and ask is held against the code."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from memory_bank.config import Config, load_config
from tests.cli.conftest import COMMAND, environment
from tests.ports import free_port
from tests.postgres import program
from tests.service.processes import Process, serve, until

ROOT = Path(__file__).parents[1]


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, their lines joined."""
    lines = [x for x in text.replace("\\\n", " ").splitlines() if x.strip() and not x.startswith("#")]
    return [(name.upper(), rest.strip()) for name, _, rest in (x.partition(" ") for x in lines)]


STEPS = instructions((ROOT / "Dockerfile").read_text())
FINAL = STEPS[max(i for i, (name, _) in enumerate(STEPS) if name == "FROM") :]


def the(name: str) -> str:
    (found,) = [rest for n, rest in FINAL if n == name]
    return found


def image_environment() -> dict[str, str]:
    pairs = [p.split("=", 1) for n, rest in FINAL if n == "ENV" for p in shlex.split(rest)]
    return dict(pairs)


def copied() -> list[str]:
    return [s for n, rest in STEPS if n == "COPY" and "--from" not in rest for s in rest.split()[:-1]]


def test_what_is_copied_is_there_and_not_left_out() -> None:
    rules = [x for x in (ROOT / ".dockerignore").read_text().splitlines() if x and not x.startswith("#")]
    assert rules[0] == "*"
    for source in copied():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in rules, source
    assert {r[1:] for r in rules if r.startswith("!")} == set(copied())


def test_what_the_build_needs_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = [*wheel["force-include"], *wheel["packages"], project["project"]["readme"]]
    needed += project["project"]["license-files"]
    for path in needed:
        assert any(path == c or path.startswith(f"{c}/") for c in copied()), path


def pins_of(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pairs = [line.split(";")[0].rstrip(" \\").split("==") for line in lines if "==" in line.split(";")[0]]
    return {name.strip().lower().replace("_", "-"): version.strip() for name, version in pairs}


def test_packages_are_pinned_with_hashes_in_the_versions_of_the_constraints() -> None:
    (install,) = [rest for n, rest in STEPS if n == "RUN" and "--require-hashes" in rest]
    assert install.split()[-1] == "requirements-docker.txt"
    (own,) = [rest for n, rest in STEPS if n == "RUN" and "--no-deps" in rest]
    assert "--no-build-isolation" in own.split()  # else the build fetches its tools unchecked
    pins, known = pins_of("requirements-docker.txt"), pins_of("constraints.txt")
    assert {n: v for n, v in pins.items() if n in known and known[n] != v} == {}
    blocks = re.split(r"^(?=\S)", (ROOT / "requirements-docker.txt").read_text(), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins)
    assert all("--hash=sha256:" in block for block in blocks)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    (command,) = re.findall(r"uv pip compile (?:.*\\\n)*.*", (ROOT / "Makefile").read_text())
    for extra in re.findall(r"--extra (\w+)", command):
        needed += project["project"]["optional-dependencies"][extra]
    assert {re.split(r"[\[<>=]", need)[0].lower().replace(".", "-") for need in needed} <= set(pins)
    assert {"fastapi", "mcp", "psycopg-binary"} <= set(pins)


def test_both_stages_have_one_base() -> None:
    assert {rest.split()[0] for n, rest in STEPS if n == "FROM"} == {"${PYTHON}"}
    (base,) = [rest.removeprefix("PYTHON=") for n, rest in STEPS if n == "ARG"]
    version = base.split(":")[1].removesuffix("-slim")
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    assert f"Programming Language :: Python :: {version}" in classifiers


def test_no_secrets_and_no_root() -> None:
    text = (ROOT / "Dockerfile").read_text() + (ROOT / "compose.yaml").read_text()
    assert not re.search(r"(?i)\b(sk-|mb_|password=\w)", text)
    assert the("USER") == "10001"
    names = [n for n, _ in FINAL]
    assert names.index("USER") < names.index("CMD")
    assert the("VOLUME") == image_environment()["XDG_DATA_HOME"] == "/data"


def in_the_image(folder: Path, **more: str) -> dict[str, str]:
    """The environment of the image, its data in a folder of the test."""
    own = {k: v for k, v in image_environment().items() if k != "PATH"}
    return environment(**{**own, "XDG_DATA_HOME": str(folder), "MEMORY_BANK_SERVICE__PORT": "0", **more})


def command(text: str) -> list[str]:
    """An instruction's command, run by this Python."""
    name, *options = json.loads(text)
    return [*COMMAND, *options] if name == "memory-bank" else [sys.executable, *options]


def test_the_command_asks_for_a_key_first(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    done = subprocess.run(
        command(the("CMD")), env=in_the_image(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "keys create" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_health_check(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    check = command(the("HEALTHCHECK").split("CMD", 1)[1])
    env = in_the_image(tmp_path, MEMORY_BANK_SERVICE__HOST="127.0.0.1")
    running = subprocess.Popen(
        command(the("CMD")), env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert running.stdout is not None
        env["MEMORY_BANK_SERVICE__PORT"] = running.stdout.readline().strip().rpartition(":")[2]
        assert subprocess.run(check, env=env, timeout=60).returncode == 0
    finally:
        running.terminate()
        assert running.wait(60) == 0
    done = subprocess.run(check, env=env, capture_output=True, timeout=60)
    assert done.returncode != 0


def test_the_port_is_the_one_that_is_served() -> None:
    assert int(the("EXPOSE")) == Config().service.port


@pytest.fixture
def compose() -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / "compose.yaml").read_text())


def filled(text: str, env: dict[str, str]) -> str:
    """A value of compose.yaml with its variables, as compose puts them in."""

    def value(m: re.Match[str]) -> str:
        return env.get(m[1]) or (m[3] or "" if m[2] == ":-" else env[m[1]])

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", value, text)


def test_the_environment_is_of_settings(compose: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = compose["services"]["service"]["environment"]
    for name, value in given.items():
        monkeypatch.setenv(name, filled(str(value), {"POSTGRES_PASSWORD": "abc"}))
    (settings,) = compose["services"]["service"]["configs"]
    assert compose["services"]["service"]["command"] == [
        "memory-bank",
        "serve",
        "--config",
        settings["target"],
    ]
    file = ROOT / filled(compose["configs"][settings["source"]]["file"], {})
    service = load_config(file).service  # refuses a variable that is no setting
    assert load_config(file) == load_config()  # without a file of the user's, what is shipped
    assert service.database == "postgresql://memory_bank:abc@database:5432/memory_bank"
    assert (service.upstream, service.upstream_anthropic) == ("", "")
    assert (service.workers, service.log_format) == (2, "json")
    grace = compose["services"]["service"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > service.shutdown_timeout + 10  # no worker is killed before its time


def test_the_keys_and_the_configuration_of_the_host_are_passed(compose: Any) -> None:
    keys = {"OPENAI_API_KEY": "sk-one", "ANTHROPIC_API_KEY": "sk-two", "CONFIG": "./mine.toml"}
    given = compose["services"]["service"]["environment"]
    assert {name: filled(given[name], keys) for name in list(keys)[:2]} == {
        k: keys[k] for k in list(keys)[:2]
    }
    assert filled(given["ANTHROPIC_API_KEY"], {}) == ""
    assert filled(compose["configs"]["settings"]["file"], keys) == "./mine.toml"
    page = (ROOT / "docs/howto/docker.md").read_text()
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    assert [name for name in sorted(used) if f"`{name}`" not in page] == []


def test_the_service_finds_its_database(compose: Any) -> None:
    service, database = compose["services"]["service"], compose["services"]["database"]
    assert service["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert "pg_isready" in database["healthcheck"]["test"][1]
    assert database["environment"]["POSTGRES_USER"] == database["environment"]["POSTGRES_DB"] == "memory_bank"
    assert "pgvector" in database["image"]
    assert "ports" not in database
    (port,) = service["ports"]
    assert port == f"127.0.0.1:{Config().service.port}:{the('EXPOSE')}"
    volumes = {v.split(":")[0] for v in database["volumes"]}
    assert volumes <= set(compose["volumes"])
    assert (ROOT / service["build"] / "Dockerfile").exists()


@pytest.fixture
def replicas() -> Any:
    """compose.replicas.yaml, where ``!reset`` takes away what compose.yaml has."""
    yaml = pytest.importorskip("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        pass

    Loader.add_constructor("!reset", lambda *_: None)
    return yaml.load((ROOT / "compose.replicas.yaml").read_text(), Loader)


def test_the_replicas_stand_behind_a_balancer_that_asks_each(
    compose: Any, replicas: Any, tmp_path: Path
) -> None:
    service, balancer = replicas["services"]["service"], replicas["services"]["balancer"]
    assert service["ports"] is None  # three cannot have one port of the host
    assert balancer["ports"] == compose["services"]["service"]["ports"]
    assert balancer["depends_on"] == {"service": {"condition": "service_healthy"}}  # by the image's check
    ((source, told),) = replicas["configs"].items()
    assert [c["source"] for c in balancer["configs"]] == [source]
    lines = [line.strip() for line in told["content"].splitlines()]
    assert f"bind :{the('EXPOSE')}" in lines
    templates = [re.fullmatch(r"server-template service (\d+) (\S+) check .*", line) for line in lines]
    places = {m.groups() for m in templates if m}
    assert places == {(str(service["deploy"]["replicas"]), f"service:{the('EXPOSE')}")}
    asked = [re.fullmatch(r"http-check send meth (\S+) uri (\S+) hdr Host (\S+)", line) for line in lines]
    pytest.importorskip("fastapi")
    from tests.service.serving import serve_here

    with serve_here(tmp_path / "bank.db") as each:
        answers = [each.ask(m[2], m[1], host=m[3]).status for m in asked if m]
    assert answers == [200, 200]
    page = (ROOT / "docs/howto/docker.md").read_text()
    used = set(re.findall(r"\$\{(\w+)", (ROOT / "compose.replicas.yaml").read_text()))
    assert [name for name in sorted(used) if f"`{name}`" not in page] == []


@pytest.mark.long
def test_the_balancer_asks_those_that_can_use_the_bank_and_else_those_that_live(
    replicas: Any, tmp_path: Path
) -> None:
    """HAProxy itself, with two services whose banks are deleted one after the other, and one that dies."""
    pytest.importorskip("fastapi")
    haproxy, port, file = program("haproxy"), free_port(), tmp_path / "haproxy.cfg"
    ((_, told),) = replicas["configs"].items()
    text = told["content"].replace(f"bind :{the('EXPOSE')}", f"bind 127.0.0.1:{port}")
    banks = [tmp_path / f"{name}.db" for name in "ab"]
    with serve("--db", banks[0]) as one, serve("--db", banks[1]) as other:
        places = [service.address.removeprefix("http://") for service in (one, other)]
        found = r"server-template service \d+ \S+ (check .*) resolvers docker init-addr none"
        text, count = re.subn(found, rf"server one {places[0]} \1\n  server other {places[1]} \1", text)
        assert count == 2
        file.write_text(text)
        with subprocess.Popen([haproxy, "-db", "-f", file], stderr=subprocess.PIPE, text=True) as process:
            balancer = Process(process, f"http://127.0.0.1:{port}")

            def told_by(path: str) -> set[int]:
                return {balancer.ask(path, host="localhost").status for _ in range(4)}

            try:
                until(lambda: not balancer.refuses())
                assert told_by("/readyz") == {200}
                banks[0].unlink()
                until(lambda: one.ask("/readyz").status == 503)
                until(lambda: told_by("/readyz") == {200})  # of the other alone
                banks[1].unlink()
                until(lambda: other.ask("/readyz").status == 503)
                until(lambda: balancer.log.count("is DOWN") == 2)
                assert told_by("/readyz") == {503}  # of both, which live
                assert told_by("/healthz") == {200}
                other.end(signal.SIGKILL)
                until(lambda: told_by("/healthz") == {200})
            finally:
                process.terminate()


def test_the_password_is_never_in_the_file(compose: Any) -> None:
    with pytest.raises(KeyError):
        filled(compose["services"]["database"]["environment"]["POSTGRES_PASSWORD"], {})
