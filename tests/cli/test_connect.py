"""memory-bank connect: what is printed, written and undone, and what is never changed."""

from __future__ import annotations

import json
import tomllib

import pytest
from typer.testing import CliRunner

from memory_bank.cli.app import app
from memory_bank.errors import ConfigError

URL = "http://127.0.0.1:8767"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in (
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "ANTHROPIC_BASE_URL",
    ):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments):
        app(["connect", *arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_without_a_client_they_are_listed(run):
    told = run()
    for named in ("claude-code", "codex", "opencode", "OPENAI_BASE_URL"):
        assert named in told


@pytest.mark.parametrize(
    ("client", "said"),
    [
        ("claude-code", f"export ANTHROPIC_BASE_URL={URL}"),
        ("anthropic", f"export ANTHROPIC_BASE_URL={URL}"),
        ("openai", f"export OPENAI_BASE_URL={URL}/v1"),
        ("codex", f'base_url = "{URL}/v1"'),
        ("opencode", f'"baseURL": "{URL}/v1"'),
    ],
)
def test_what_a_client_needs_is_printed_and_nothing_is_written(run, tmp_path, client, said):
    assert said in run(client)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("client", "file", "before"),
    [
        ("claude-code", ".claude/settings.json", '{"model": "opus", "env": {"A": "é"}}'),
        ("opencode", ".config/opencode/opencode.json", '{"provider": {"openai": {"models": {}}}}'),
    ],
)
def test_json_is_written_and_undone(run, tmp_path, client, file, before):
    path = tmp_path / file
    run(client, "--write")
    assert URL in path.read_text()
    run(client, "--undo")
    assert json.loads(path.read_text()) == {}
    path.write_text(before)
    run(client, "--write", "--url", "http://10.0.0.1:9/v1/")
    written = path.read_text()
    assert "http://10.0.0.1:9" in written
    run(client, "--write", "--url", "http://10.0.0.1:9")
    assert path.read_text() == written
    run(client, "--undo", "--url", "http://10.0.0.1:8")  # the address differs: nothing of that is there
    assert path.read_text() == written
    run(client, "--undo")  # what --write has written, whatever its --url was
    assert json.loads(path.read_text()) == json.loads(before)
    path.write_text(written)  # a person wrote it
    run(client, "--undo")
    assert path.read_text() == written
    run(client, "--undo", "--url", "http://10.0.0.1:9")
    assert json.loads(path.read_text()) == json.loads(before)


def test_claude_is_the_command_of_claude_code(run):
    assert run("claude") == run("claude-code")


@pytest.mark.parametrize(
    ("url", "said"),
    [(f"{URL}/v1", "`memory-bank serve`"), ("http://localhost:9", "`memory-bank serve --port 9`"),
     ("http://10.0.0.1:9", "`memory-bank serve`")],
)  # fmt: skip
def test_the_service_to_start_is_at_the_address(tmp_path, monkeypatch, url, said):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"start {said}, let" in CliRunner().invoke(app, ["connect", "openai", "--url", url]).output


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:abc", "http://[::1", "http:/x", "ftp://x"])
def test_what_is_no_address_is_refused(run, url):
    with pytest.raises(ConfigError, match="is no address of the service"):
        run("openai", "--url", url)


def test_the_port_is_that_of_the_service(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMORY_BANK_SERVICE__PORT", "9123")
    assert "http://127.0.0.1:9123/v1" in run("openai")
    monkeypatch.delenv("MEMORY_BANK_SERVICE__PORT")
    (tmp_path / "own.toml").write_text("[service]\nport = 9124\n")
    assert "http://127.0.0.1:9124/v1" in run("openai", "--config", str(tmp_path / "own.toml"))


@pytest.mark.parametrize(
    ("upstream", "is_set"),
    [("", False), ("https://api.anthropic.com", False), (URL, False), ("http://127.0.0.1:11434", True),
     ("https://anthropic.example.com/v1", True)],
)  # fmt: skip
def test_claude_codes_header_is_off_where_the_upstream_is_not_anthropic(
    run, tmp_path, monkeypatch, upstream, is_set, capsys
):
    monkeypatch.setenv("ANTHROPIC_BASE_URL", upstream)
    assert ("export CLAUDE_CODE_ATTRIBUTION_HEADER=0" in run("claude-code")) == is_set
    run("claude-code", "--write")
    path = tmp_path / ".claude" / "settings.json"
    assert json.loads(path.read_text())["env"].get("CLAUDE_CODE_ATTRIBUTION_HEADER") == (
        "0" if is_set else None
    )
    monkeypatch.delenv("ANTHROPIC_BASE_URL")
    run("claude-code", "--undo")
    assert json.loads(path.read_text()) == {}


def test_toml_is_written_and_undone(run, tmp_path):
    path = tmp_path / ".codex" / "config.toml"
    path.parent.mkdir()
    before = 'model = "gpt-6"\n\n[model_providers.mine]\nname = "mine"'
    path.write_text(before)
    run("codex", "--write")
    config = tomllib.loads(path.read_text())
    assert config["model"] == "gpt-6"
    assert config["model_provider"] == "memory_bank"
    assert config["model_providers"]["memory_bank"]["base_url"] == f"{URL}/v1"
    assert config["model_providers"]["mine"] == {"name": "mine"}
    written = path.read_text()
    run("codex", "--write")
    assert path.read_text() == written
    run("codex", "--undo")
    assert path.read_text().rstrip("\n") == before


@pytest.mark.parametrize(
    ("client", "file", "content"),
    [
        (
            "claude-code",
            ".claude/settings.json",
            '{"env": {"ANTHROPIC_BASE_URL": "https://gateway.example"}}',
        ),
        ("claude-code", ".claude/settings.json", '{"env": 7}'),
        ("opencode", ".config/opencode/opencode.json", "{ // a comment\n}"),
        ("codex", ".codex/config.toml", 'model_provider = "mine"\n'),
        ("codex", ".codex/config.toml", "no toml"),
    ],
)
def test_what_is_set_already_is_never_changed(run, tmp_path, client, file, content):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ConfigError, match="by hand"):
        run(client, "--write")
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody"], "choose one of"),
        (["codex", "--write", "--undo"], "not both"),
        (["codex", "--url", "localhost"], "no address"),
        (["openai", "--write"], "no configuration file"),
    ],
)
def test_wrong_use_is_told_in_one_sentence(run, arguments, said):
    with pytest.raises(ConfigError, match=said):
        run(*arguments)


CONFIGS = {
    "none": "",
    "a setting": 'model = "gpt-6"\n',
    "settings": 'model = "gpt-6"\napproval_policy = "never"\n\nnotify = ["a", "b"]',
    "a table": 'model = "gpt-6"\n\n[tools]\nweb_search = true\n',
    "another provider": '[model_providers.mine]\nname = "mine"\n\n[mcp_servers.a]\ncommand = "a"\n',
    "an array": '[[hooks]]\nname = "x"\n[projects."/home/a"]\ntrust_level = "trusted"',
    "a comment": "# mine\n[profiles.fast]\nmodel = 'gpt-6'\n# end",
}
WANTED = {
    "model_provider": "memory_bank",
    "memory_bank": {
        "name": "memory_bank",
        "base_url": f"{URL}/v1",
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_lines_for_codex_work_where_they_are_to_be_pasted(run, name):
    """At the top of any file, and at the end of one without tables; TOML has no text that does for both."""
    before, lines = CONFIGS[name], run("codex")
    old = tomllib.loads(before)
    pasted = [f"{lines}{before}"]
    if not any(isinstance(v, dict) or (isinstance(v, list) and isinstance(v[0], dict)) for v in old.values()):
        pasted.append(f"{before}\n{lines}")
    for text in pasted:
        new = tomllib.loads(text)
        assert new.pop("model_provider") == WANTED["model_provider"]
        assert new["model_providers"].pop("memory_bank") == WANTED["memory_bank"]
        assert {k: v for k, v in new.items() if v or k in old} == old


@pytest.mark.parametrize("client", ["claude-code", "codex", "opencode", "openai", "anthropic"])
def test_what_is_told_says_where_each_printed_line_belongs(tmp_path, monkeypatch, capsys, client):
    monkeypatch.setenv("HOME", str(tmp_path))
    app(["connect", client], standalone_mode=False)
    out, told = capsys.readouterr()
    if client == "codex":
        assert f"at the top of {tmp_path / '.codex' / 'config.toml'}" in told
        assert "OPENAI_API_KEY" in told
    if client == "claude-code":  # as its file holds it
        file = tmp_path / ".claude" / "settings.json"
        assert str(file) in told
        shown = json.loads(told[told.index("{") : told.rindex("}") + 1])
        CliRunner().invoke(app, ["connect", client, "--write"])
        assert json.loads(file.read_text()) == shown
    if client == "opencode":
        CliRunner().invoke(app, ["connect", client, "--write"])
        assert json.loads((tmp_path / ".config/opencode/opencode.json").read_text()) == json.loads(out)
    if "export" in out:
        assert "not in that of the service" in told
    assert "memory-bank serve" in told
