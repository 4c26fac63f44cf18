"""Several services that take a session's requests by turns cost what one does."""

import pytest

from tests.benchmarks import load

processes = load("processes")


@pytest.mark.long
def test_three_services_cost_what_one_does(capsys):
    given = ["--sessions", "1", "--turns", "50", "--services", "1,3", "--encoding", "approximate"]
    assert processes.main(given) == 0
    none, one, three = (row.split(" | ") for row in capsys.readouterr().out.splitlines()[2:])
    assert one[1:] == three[1:]
    assert int(one[3]) >= 1  # a fold
    assert float(one[2].rstrip("%")) < float(none[2].rstrip("%"))
