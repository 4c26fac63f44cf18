"""Marks within a table repeat its header where that does not stand near above."""

import re

import pytest
from tests.context.test_first_sight import COUNT
from tests.context.test_logs import filler, log, shown

from memory_bank.selection.cutting import cut_text

MARKDOWN = "| order | customer | amount |\n|---|---|---|"
ALIGNED = "ORDER        CUSTOMER        AMOUNT"
TABLES = {
    "csv": ("order,customer,amount", "ORD-{m},customer {n},{n}.50"),
    "tsv": ("order\tcustomer\tamount", "ORD-{m}\tcustomer {n}\t{n}.50"),
    "markdown": (MARKDOWN, "| ORD-{m} | customer {n} | {n}.50 |"),
    "aligned": (ALIGNED, "ORD-{m:<5}    customer {n:<5}  {n}.50"),
    "ruled": (f"{ALIGNED}\n-----        --------        ------", "ORD-{m:<5}    customer {n:<5}  {n}.50"),
}


@pytest.mark.parametrize(
    ("name", "is_first"),
    [*((name, True) for name in TABLES), *((name, False) for name in ("markdown", "aligned", "ruled"))],
)
def test_rows_have_their_header_at_each_gap(name, is_first):
    header, row = TABLES[name]
    rows = filler(row, 900)
    before = "" if is_first else log(filler("Paragraph {n} of the report tells of {m}.", 40), "\n")
    wanted = re.search(r"ORD-\d+", rows.split("\n")[600])[0]
    part, _ = shown(f"{before}{header}\n{rows}", f"Look for {wanted}.", "get_report")
    assert COUNT(part) <= 4_000
    lines = part.split("\n")
    titles = header.split("\n")[0]
    first = next(n for n, line in enumerate(lines) if "ORD-" in line)
    assert wanted in part and " ".join(titles.split()) in " ".join("\n".join(lines[:first]).split())
    since = 0
    for line in lines[first:]:
        if line.startswith("[…"):
            if since > 900:
                assert line.endswith(f"; columns: {' '.join(titles.split())}]"), line
            since = 0 if "; columns: " in line else since
        since += len(line)


def test_an_aligned_table_is_cut_with_its_columns():
    cut = cut_text(f"{ALIGNED}\n{filler(TABLES['aligned'][1], 9)}\n\nThat was all.")
    assert cut.heads[1] == ALIGNED
    assert [key for key, _, _ in cut.segments[1].cells[:3]] == ["ORDER", "CUSTOMER", "AMOUNT"]
    assert cut.quote([3]).startswith(f"{ALIGNED}\n…")


@pytest.mark.parametrize(
    "text",
    [
        "A sentence.  It goes on.\nAnother one.  And on.\nA third.  The end.",
        "    def f(a):\n        return a  # note\n    def g(b):\n        return b  # note\n",
        "total 8\ndrwxr-xr-x 2 root root 4096 Oct 17 23:00 .\n-rw-r--r-- 1 root root   12 Oct 17 23:01 a",
        "Title of it\n-----------\nText of it",
    ],
)
def test_other_lines_are_no_table(text):
    assert cut_text(text).heads == ("",)
