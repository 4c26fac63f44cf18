"""The service fits evidence models in a process of its own, for each namespace alone, and only when it is asked to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.chats import rounds, system, user
from tests.cli.test_train_bank import records
from tests.service.processes import until

from memory_bank.bank.database import Database, database_url
from memory_bank.bank.learned import keep_model, learned_of
from memory_bank.bank.stores import FactStore
from memory_bank.config import load_config
from memory_bank.context.policies.evidence import evidence_of
from memory_bank.errors import ConfigError
from memory_bank.selection.model import MODEL_FILE, load_model
from memory_bank.service.operations.background import ServiceLearning
from memory_bank.service.sessions import Sessions


def fill(database: Database, namespace: str, count: int) -> None:
    for n in range(count):
        name = f"{namespace}/{n}"
        database.open_session(name, None, namespace)
        FactStore(database, name).store_many(records(n))


@pytest.mark.long
def test_a_namespace_with_enough_new_sessions_gets_its_model(bank_url: str) -> None:
    database = Database(bank_url)
    fill(database, "a", 10)
    fill(database, "few", 2)
    learning = ServiceLearning(database, 10, checked_every=0.05)
    learning.start()
    until(lambda: (found := learned_of(database, "a")) and found.model, 600)
    learning.close()
    assert learned_of(database, "few") is None
    database.close()


def test_it_does_nothing_unless_it_is_asked_to(tmp_path: Path) -> None:
    assert load_config().service.learn_after == 0
    database = Database(tmp_path / "bank.db")
    fill(database, "a", 3)
    learning = ServiceLearning(database, 0, checked_every=0.0)
    learning.start()
    learning.close()
    assert learned_of(database, "a") is None
    database.close()


def test_a_shutdown_does_not_wait_for_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(tmp_path / "bank.db")
    fill(database, "a", 3)
    began: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def endless(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        began.append(popen([sys.executable, "-c", "import time; time.sleep(3600)"], **options))
        return began[-1]

    monkeypatch.setattr(subprocess, "Popen", endless)
    learning = ServiceLearning(database, 3, checked_every=0.01)
    learning.start()
    until(lambda: began)
    learning.close()
    assert began[0].returncode is not None
    database.close()


def test_a_bank_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="learn_after needs a bank in a file"):
        ServiceLearning(Database(), 5)


def test_the_password_of_the_database_is_not_in_the_command(tmp_path: Path) -> None:
    database = Database(tmp_path / "bank.db")
    learning = ServiceLearning(database, 5)
    for url in ("postgresql://me:s3cret@host/bank", "postgresql://me@host/bank?password=s3cret"):
        database.url = database_url(url)
        assert learning.address() == ("postgresql://me@host/bank", {"PGPASSWORD": "s3cret"})
    database.close()


def test_contexts_and_previews_use_the_model_of_their_namespace_alone(tmp_path: Path) -> None:
    database = Database(tmp_path / "bank.db")
    model = MODEL_FILE.read_text().replace('"bias":', '"bias":7.25,"before":', 1)
    assert keep_model(database, "a", {}, model)
    sessions = Sessions(database, load_config())
    messages: list[object] = [system(), user(), *rounds(12, size=4_000)]
    for namespace, bias in (("a", 7.25), ("b", load_model().bias)):
        memory = evidence_of(sessions.rebuild(namespace, "task", messages).state)  # type: ignore[arg-type]
        assert memory is not None and memory.index.model.bias == bias
    assert sessions.preview("a", "task", messages)
    sessions.close()
    database.close()
