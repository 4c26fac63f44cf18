"""The key of a folder's project: real git in temporary folders."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib

import pytest
from tests.service.processes import until

from memory_bank.cli.run import pointed
from memory_bank.service.project import (
    normalised_remote,
    project_of_folder,
    project_of_prompt,
    projects_of,
)
from memory_bank.transcript.harness import folder_of, project_of_place

URL = "http://127.0.0.1:4711"
SHOP = "https://git.example/me/shop.git"


def git(folder, *arguments):
    folder.mkdir(exist_ok=True)
    named = ("-c", "user.name=n", "-c", "user.email=e@example")
    subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True)
    return folder


def repository(folder, remote=None):
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder if remote is None else git(folder, "remote", "add", "origin", remote)


@pytest.fixture(autouse=True)
def own_git(monkeypatch, tmp_path):
    """No repository above, and no settings of the machine."""
    for name in [n for n in os.environ if n.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


@pytest.mark.parametrize(
    "url",
    [
        SHOP,
        "https://git.example/me/shop",
        "https://git.example/me/shop/",
        "https://git.example:443/me/shop.git",
        "https://GIT.example/me/shop.git?token=SECRET",
        "https://me:SECRET@git.example/me/shop.git",
        "https://SECRET@git.example/me/shop",
        "ssh://git@git.example/me/shop.git",
        "ssh://git@git.example:2222/me/shop",
        "git@git.example:me/shop.git",
        "git.example:me/shop",
        "git.example:/me/shop.git",
    ],
)
def test_every_form_of_a_remote_is_one_project(tmp_path, url):
    assert normalised_remote(url) == "git.example/me/shop"
    key = project_of_folder(repository(tmp_path / "any name", url))
    assert key == project_of_folder(repository(tmp_path / "other", SHOP))
    assert key.startswith("shop@")
    assert "SECRET" not in key


@pytest.mark.parametrize("url", ["https://[::1/shop", "https://git.example/", "https://git.example:port/x"])
def test_a_url_that_names_no_repository_is_no_remote(tmp_path, url):
    assert normalised_remote(url) is None
    assert project_of_folder(repository(tmp_path / "shop", url)) == project_of_folder(tmp_path / "shop")


def test_worktrees_and_folders_of_a_repository_share_and_forks_do_not(tmp_path):
    shop = repository(tmp_path / "shop", SHOP)
    git(shop, "worktree", "add", "-q", str(tmp_path / "fix"))
    (shop / "src").mkdir()
    fork = repository(tmp_path / "fork", "git@git.example:you/shop.git")
    git(fork, "remote", "add", "upstream", SHOP)
    keys = [project_of_folder(tmp_path / name) for name in ("shop", "fix", "shop/src", "fork")]
    assert len(set(keys[:3])) == 1
    assert keys[3] not in keys[:3]
    bare = repository(tmp_path / "bare")
    git(bare, "worktree", "add", "-q", str(tmp_path / "of-bare"))
    keys = [project_of_folder(tmp_path / name) for name in ("bare", "of-bare")]
    assert len(set(keys)) == 1
    assert keys[0].startswith("bare@")
    assert project_of_folder(repository(tmp_path / "another")) not in keys


def test_a_renamed_remote_keeps_the_project_and_another_address_is_another(tmp_path):
    """The remote's name in git says nothing; the repository's name at its host does."""
    shop = repository(tmp_path / "shop", SHOP)
    before = project_of_folder(shop)
    git(shop, "remote", "rename", "origin", "home")
    assert project_of_folder(shop) == before
    git(shop, "remote", "set-url", "home", "https://git.example/me/store.git")
    assert project_of_folder(shop) != before
    assert project_of_folder(shop).startswith("store@")


def test_the_folder_counts_not_the_repository_that_a_hook_works_in(tmp_path, monkeypatch):
    shop, mail = repository(tmp_path / "shop", SHOP), repository(tmp_path / "mail")
    keys = project_of_folder(shop), project_of_folder(mail)
    monkeypatch.setenv("GIT_DIR", str(mail / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(mail))
    assert (project_of_folder(shop), project_of_folder(mail)) == keys


def test_a_remote_that_is_a_folder(tmp_path):
    origin = repository(tmp_path / "origin")
    for name, url in (("a", str(origin)), ("b", origin.as_uri()), ("c", "../origin")):
        repository(tmp_path / name, url)
    assert len({project_of_folder(tmp_path / name) for name in "abc"}) == 1


def test_without_a_repository_or_git_there_is_no_project(tmp_path, monkeypatch):
    assert project_of_folder(tmp_path) is None
    assert project_of_folder(tmp_path / "missing") is None
    repository(tmp_path / "shop", SHOP)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert project_of_folder(tmp_path / "shop") is None


def test_the_keys_that_a_folders_sessions_have(tmp_path):
    """By a path alone there is never the key of a remote."""
    shop = repository(tmp_path / "shop", SHOP)
    of_path = project_of_prompt(os.path.realpath(shop), is_here=False)
    assert projects_of(shop) == [project_of_folder(shop), of_path]
    assert project_of_folder(shop) != of_path
    assert folder_of("Working directory: git.example/me/shop\n") is None
    assert projects_of(tmp_path) == [project_of_prompt(os.path.realpath(tmp_path), is_here=True)]


def test_a_folder_that_a_client_names_is_the_project_of_its_repository(tmp_path, monkeypatch):
    """As `run` names it, also below the repository and in its worktrees; elsewhere, and without git, it is its path's."""
    shop = repository(tmp_path / "shop", SHOP)
    git(shop, "worktree", "add", "-q", str(shop / ".claude" / "worktrees" / "fix"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (str(shop), f"{shop}/", str(shop / ".claude" / "worktrees" / "fix"), "~/shop"):
        said = folder_of(f"You code.\n<cwd>{folder}</cwd>")
        until(lambda said=said: project_of_prompt(said, is_here=True) == project_of_folder(shop))
        assert project_of_prompt(said, is_here=False) == project_of_place(said)
    for folder in (
        "/no/such/folder",
        str(tmp_path),
        "C:\\work\\shop",
        "/a\0b",
        "~\0/a",
        "~\ud800/a",
        "-x",
        "/a\nb",
    ):
        assert project_of_prompt(folder, is_here=True) == project_of_place(folder)


def test_a_folder_whose_git_does_not_answer_holds_no_request_up(tmp_path):
    """As on a network drive that is away; nothing that the folder's settings name is run."""
    shop, ran = repository(tmp_path / "shop", SHOP), tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\necho $0 > {ran}\n")
    script.chmod(0o755)
    settings = shop / ".git" / "config"
    named = f"[core]\nfsmonitor={script}\npager={script}\nsshCommand={script}\nhooksPath={tmp_path}\n"
    settings.write_text(f"{settings.read_text()}{named}[alias]\nremote=!{script}\nrev-parse=!{script}\n")
    until(lambda: project_of_prompt(f"{shop}/", is_here=True) == project_of_folder(shop))
    os.mkfifo(tmp_path / "pipe")
    settings.write_text(f"{settings.read_text()}[include]\npath={tmp_path}/pipe\n")
    began = time.monotonic()
    assert project_of_prompt(str(shop), is_here=True) == project_of_place(str(shop))
    for _ in range(30):
        project_of_prompt(str(shop), is_here=True)
    assert time.monotonic() - began < 25  # a second for all of them, not one for each
    assert not ran.exists()
    os.close(os.open(tmp_path / "pipe", os.O_RDWR))  # git, which still reads, ends


# --- what clients get


def test_the_clients_of_run_name_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(repository(tmp_path / "shop", "https://me:SECRET@git.example/me/Shöp.git"))
    monkeypatch.delenv("ANTHROPIC_CUSTOM_HEADERS", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    header = {"x-memory-project": project_of_folder().replace("ö", "%C3%B6")}
    command, variables = pointed(["codex"], URL)
    assert tomllib.loads(command[4])["model_providers"]["memory_bank"]["http_headers"] == header
    providers = json.loads(variables["OPENCODE_CONFIG_CONTENT"])["provider"]
    assert all(p["options"]["headers"] == header for p in providers.values())
    assert variables["ANTHROPIC_CUSTOM_HEADERS"] == f"x-memory-project: {header['x-memory-project']}"
    assert "SECRET" not in json.dumps([command, variables])
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-team: a")
    _, variables = pointed(["claude"], URL)
    assert variables["ANTHROPIC_CUSTOM_HEADERS"].splitlines() == [
        "x-team: a", f"x-memory-project: {header['x-memory-project']}"
    ]  # fmt: skip
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Memory-Project: mine")
    assert pointed(["claude"], URL)[1]["ANTHROPIC_CUSTOM_HEADERS"] == "X-Memory-Project: mine"


def test_without_a_repository_clients_name_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_CUSTOM_HEADERS", raising=False)
    command, variables = pointed(["codex"], URL)
    assert "x-memory" not in json.dumps([command, variables])
