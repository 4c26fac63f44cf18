"""The text of a page: what its readers see, in their order, with its links, tables and forms."""

import pytest
from tests.growth import cpu_seconds

from memory_bank.transcript.markup import page_text

PAGE = """<!DOCTYPE html>
<html lang="en"><head><title>Papers &amp; talks</title>
<meta name="description" content="All that was accepted.">
<meta name="viewport" content="width=device-width">
<link rel="stylesheet" href="/site.css"><style>.nav{color:#112233}</style>
<script>window.track = {"key": "K-1"};</script></head>
<body class="page-template"><!-- built 12:00 --><svg><path d="M0 0"/></svg>
<nav><ul><li><a class="nav-link p-1" href="/faq"><span>Help / FAQ</span></a></li><li><a href="#top">Top</a></li></ul></nav>
<h2>Accepted</h2>
<p>There are <b>two</b>   papers<sup>1</sup>,
see <a href="/list?year=2024&amp;page=2">the list</a>.<br>Ask us.</p>
<img src="/logo.png" alt="Logo" width="40"><img src="data:image/png;base64,QUJD">
<table><tr><th>Title</th><th>Poster</th></tr><tr><td>On Rest</td><td><a href="/p/7">#7</a></td></tr></table>
<form action="/search" method="get"><input type="hidden" name="csrf" value="T-9"><button type="submit">Find</button></form>
<pre>
  one  1
    two</pre>
<nav><ul><li><a href="/faq">Help / FAQ</a></li></ul></nav>
</body></html>"""


def test_a_page_is_its_words_with_links_tables_and_forms():
    assert page_text(PAGE).split("\n") == [
        "Papers & talks",
        "All that was accepted.",
        "- [Help / FAQ](/faq)",
        "- Top",
        "## Accepted",
        "There are two papers1, see [the list](/list?year=2024&page=2).",
        "Ask us.",
        "![Logo](/logo.png)",
        "| Title | Poster",
        "|---|---",
        "| On Rest | [#7](/p/7)",
        '<form action="/search" method="get">',
        '<input name="csrf" type="hidden" value="T-9">Find',
        "  one  1",
        "    two",
    ]


def test_what_a_client_says_around_a_page_stays():
    text = page_text(
        f"Contents of https://a.example:\n{PAGE[:-40]}<script>let cut = [1, 2\n\n(cut at 900 characters: see out.txt)\n"
    )
    assert text.startswith("Contents of https://a.example:\nPapers & talks\n")
    assert text.endswith("\n(cut at 900 characters: see out.txt)")
    assert "let cut" not in text


def test_a_page_that_shows_hardly_anything_keeps_its_scripts():
    slots = "".join(f"AvailableAtSlot[{n}].push({n * 7});\n" for n in range(200))
    text = page_text(f"<html><style>b{{}}</style><body>Meeting<script>\n{slots}</script></body></html>")
    assert text.startswith("Meeting\n") and "AvailableAtSlot[7].push(49);" in text and "b{}" not in text


def test_broken_pages_lose_no_words():
    page = """<html><body class="article-page with-sidebar"><svg class="icon"><path d="M0 0"><p class="lead">One <b>two
<p title="a > b">three <a href="/x" title="c > d">link</a> a < 1
<textarea name="text" rows="20" class="editor">Line 1
    Line 2</textarea>
<select name="unit" class="form-control"><option value="m" selected>Metre<option value="k">Mile</select></body>"""
    assert page_text(page).split("\n") == [
        "One two",
        "three [link](/x) a < 1",
        '<textarea name="text">Line 1',
        "    Line 2",
        '<select name="unit">',
        '<option value="m" selected>Metre',
        '<option value="k">Mile',
    ]


SOURCE = '<html lang="en">\n  <body class="page">\n    <p class="lead">Words</p>\n  </body>\n</html>'


@pytest.mark.parametrize(
    "before",
    [
        "export default function Layout({ children }) {\n  return (\n",
        "# A page\n\nWrite this:\n\n```html\n",
        "<?php include 'a.php'; ?>\n",
        '{% extends "base.html" %}\n',
        "diff --git a/a.html b/a.html\n@@ -1,3 +1,3 @@\n",
        "public String page() {\n",
    ],
)
def test_a_source_that_holds_a_page_is_none(before):
    assert page_text(before + SOURCE) == ""
    assert page_text(f"URL: https://a.example\n{SOURCE}") == "URL: https://a.example\nWords"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no page",
        "a < b and <b>bold</b>",
        '{"html": "<html><body>x</body></html>"}',
        "<html><pre>" + "as it is\n" * 40,
    ],
)
def test_other_texts_are_no_pages(text):
    assert page_text(text) == ""


@pytest.mark.parametrize(
    "part",
    [
        "<script>",
        "<a href=x>",
        "<!--\n\n",
        "<td><th>",
        "<svg",
        "<svg>",
        "</a>",
        "<pre> x\n\n",
        "<a b='",
        "<a b='\"",
    ],
)
def test_it_takes_linear_time(part):
    short, long = (
        cpu_seconds(lambda n=n: page_text("<html>" + part * (n // len(part)))) for n in (20_000, 160_000)
    )
    assert long < max(0.05, 20 * short)
