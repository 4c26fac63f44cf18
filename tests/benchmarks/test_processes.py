"""Several services that take a session's requests by turns cost what one does."""

import pytest

from tests.benchmarks import load
from tests.postgres import why_not

processes = load("processes")


@pytest.mark.long
def test_three_services_cost_what_one_does(capsys):
    given = ["--sessions", "1", "--turns", "50", "--services", "1,3", "--encoding", "approximate"]
    assert processes.main(given) == 0
    none, one, three = (row.split(" | ") for row in capsys.readouterr().out.splitlines()[2:])
    assert one[1:] == three[1:]
    assert int(one[3]) >= 1  # a fold
    assert float(one[2].rstrip("%")) < float(none[2].rstrip("%"))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_services_that_die_lose_no_record(kind, capsys):
    if kind == "postgres" and (reason := why_not()):
        pytest.skip(reason)
    given = ["--kind", kind, "--sessions", "3", "--turns", "12", "--calls", "8", "--agents", "3", "--faults"]
    assert processes.main([*given, "--services", "3", "--encoding", "approximate"]) == 0
    *_, with_faults = (row.split(" | ") for row in capsys.readouterr().out.splitlines())
    assert with_faults[5:7] == ["0", "0"]
    assert int(with_faults[3]) >= 3  # folds
