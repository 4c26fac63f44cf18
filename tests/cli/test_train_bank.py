"""``memory-bank lab train --db``: a bank learns from its own sessions, for their namespace alone, and only if that wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memory_bank import InteractionRecord, MemoryBankState
from memory_bank.bank.database import Database
from memory_bank.bank.learned import keep_model, learned_of, newest_sessions
from memory_bank.bank.stores import FactStore
from memory_bank.lab.training.train import adapt_to, trace_of_records
from memory_bank.selection.model import load_model, parse_model

SESSIONS = 12


def records(session: int, *, steady: bool = True, row: int = 11) -> list[InteractionRecord]:
    """A session of eight lists; from the third on, a call takes a code of the list before the latest."""
    made = []
    for n in range(8):
        rows = [{"title": f"thing {r}", "code": f"Q{session}{n}{r}-zz"} for r in range(12)]
        arguments = {"code": f"Q{session}{n - 2}{row}-zz"} if n > 1 and steady else {"page": n}
        made.append(
            InteractionRecord(f"t{session}-{n}", n + 1, "open", arguments, rows, 1_700_000_000.0 + n, f"c{n}")
        )
    return made


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    database = Database(tmp_path / "bank.db")
    for n in range(SESSIONS):
        database.open_session(f"a/{n}", None, "a")
        FactStore(database, f"a/{n}").store_many(records(n))
    database.open_session("own", None, None)
    FactStore(database, "own").store_many(records(99, steady=False))
    database.close()
    return tmp_path / "bank.db"


def test_a_namespace_gets_a_model_that_wins_on_its_newest_sessions(
    cli: Callable[..., Any], bank: Path
) -> None:
    figures = cli("lab", "train", "--db", bank, "--namespace", "a", "--json").json()
    assert figures["kept"] and figures["sessions"] == SESSIONS
    assert figures["new"] < figures["present"]
    database = Database(bank)
    found = learned_of(database, "a")
    assert found is not None and found.model is not None
    weights = parse_model(found.model, "it").weights
    assert (weights != load_model().weights).any()
    assert learned_of(database, None) is None  # of the other namespace nothing is known
    assert MemoryBankState.open(database, "own").learned_model() is None
    database.close()
    assert "deleted the model" in cli("lab", "train", "--db", bank, "--namespace", "a", "--forget").out
    assert "no model" in cli("lab", "train", "--db", bank, "--namespace", "a", "--forget").out


def test_too_few_calls_are_told_in_one_sentence(cli: Callable[..., Any], bank: Path) -> None:
    done = cli("lab", "train", "--db", bank)
    assert done.code == 1
    assert "too few calls" in done.sentence()


@pytest.mark.long
def test_a_model_that_is_not_better_is_not_taken(cli: Callable[..., Any], tmp_path: Path) -> None:
    database = Database(tmp_path / "bank.db")
    for n in range(SESSIONS):
        # The newest sessions need the first row of each list, those before them the last.
        database.open_session(f"a/{n:02}", None, "a")
        FactStore(database, f"a/{n:02}").store_many(records(n, row=11 if n < SESSIONS - 2 else 0))
    own = {s.session_id: s.generation for s in newest_sessions(database, "a")}
    assert keep_model(database, "a", own, Path(evidence_file()).read_text())
    done = cli("lab", "train", "--db", tmp_path / "bank.db", "--namespace", "a", "--json")
    assert done.code == 1
    figures = json.loads(done.out)
    assert not figures["kept"]
    assert figures["new"] > figures["present"]
    found = learned_of(database, "a")
    assert found is not None and found.model is None  # the one before was not confirmed
    database.close()


@pytest.mark.parametrize("share", [0.995, 0.98])
def test_a_model_has_to_win_by_a_margin(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([share, 1.0])
    monkeypatch.setattr("memory_bank.lab.training.train.held_out_loss", lambda *_: next(losses))
    traces = [trace_of_records(str(n), "Open every item.", records(n)) for n in range(SESSIONS)]
    assert (adapt_to(traces, load_model())[2] is not None) == (share < 0.99)


def test_a_session_uses_the_model_of_its_namespace(bank: Path) -> None:
    from memory_bank.context.evidence import evidence_model

    database = Database(bank)
    shipped = load_model()
    text = json.loads(Path(evidence_file()).read_text())
    text["weights"] = [0.0] * len(text["weights"])
    own = newest_sessions(database, "a")
    assert keep_model(database, "a", {s.session_id: s.generation for s in own}, json.dumps(text))
    learned = MemoryBankState.open(database, "a/1").learned_model()
    assert not evidence_model(None, learned).weights.any()
    assert (
        evidence_model(evidence_file(), learned).weights == shipped.weights
    ).all()  # a named file comes first
    database.close()


def test_a_learned_model_of_other_features_is_ignored_with_a_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from memory_bank.context.evidence import evidence_model

    text = json.loads(Path(evidence_file()).read_text())
    for change in ({"version": 999}, {"features": ["other"]}):
        caplog.clear()
        assert (evidence_model(None, json.dumps(text | change)).weights == load_model().weights).all()
        assert "trained on other features: train it again" in caplog.text


def evidence_file() -> str:
    from memory_bank.selection.model import MODEL_FILE

    return str(MODEL_FILE)
