"""The size benchmark fills a bank, and prints a figure of everything it measures."""

import pytest

from tests.benchmarks import load

size = load("size")


@pytest.mark.long
def test_a_row_for_each_size(capsys):
    assert size.main(["--records", "20,40", "--databases", "sqlite"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[1] for row in rows] == ["20", "40"]
    for row in rows:
        assert len(row.split(" | ")) == len(head.split(" | "))
        assert "nan" not in row
