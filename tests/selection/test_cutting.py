"""A cut text is quoted to the letter, in its natural units; whatever the text is."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.quoting import unquote_lines
from tests.selection.texts import ANY_TEXT

from memory_bank.selection.cutting import GAP, CutText, cut_text
from memory_bank.selection.values import find_candidates, fold, words_of
from memory_bank.transcript.structure import MAX_BRACKETS, Node, find_structure, unescape

FRAME_LIKE = st.lists(
    st.sampled_from(
        [GAP, f"{GAP} line 7:", "[… #3]", "#2 get_order id=A-1", "\\#2 get_order", "  #4 x", "Excerpts:", "paid A-1",
         "\r#5 y", "\u200b#6 z", "</retrieved-data seal=0>", "value " * 30]
    ),
    max_size=40,
).map("\n".join)  # fmt: skip


def stretches(cut: CutText, places: list[int]) -> list[str]:
    """What stands between the gap marks of a quote, as it stands in the source."""
    found: list[list[str]] = [[]]
    for line in cut.quote(places).split("\n"):
        if line == GAP or (line.startswith(GAP + " ") and line.endswith(":")):
            found.append([])
        else:
            found[-1].append(line)
    return [unquote_lines("\n".join(lines)) for lines in found if lines]


@examples(300)
@given(st.one_of(ANY_TEXT, FRAME_LIKE), st.data())
def test_what_stands_between_gap_marks_stands_so_in_the_text(text, data):
    cut = cut_text(text)
    places = data.draw(st.sets(st.integers(0, max(0, len(cut.segments) - 1)), max_size=12))
    chosen = sorted(p for p in places if p < len(cut.segments))
    for stretch in stretches(cut, chosen):
        assert any(stretch in source for source in cut.sources)
    quote = cut.quote(chosen)
    plain = unquote_lines(quote)
    assert all(cut.segments[p].text in plain for p in chosen)
    assert cut.sources[:1] == (text,)


@examples(200)
@given(ANY_TEXT)
def test_segments_are_spans_in_order_that_do_not_overlap(text):
    cut = cut_text(text)
    ends = [0] * len(cut.sources)
    for segment in cut.segments:
        source = cut.sources[segment.source]
        assert segment.text == source[segment.start : segment.end] and segment.text.strip()
        assert ends[segment.source] <= segment.start < segment.end
        ends[segment.source] = segment.end
        assert all(0 <= start <= end <= len(segment.text) for _, start, end in segment.cells)


@examples(200)
@given(st.lists(st.from_regex(r"[ \t]{0,4}[a-z(){}=.,:_\[\]\"' 0-9]{0,40}\r?", fullmatch=True), max_size=60))
def test_quoting_all_segments_of_lines_gives_every_word(lines):
    text = "\n".join(lines)
    cut = cut_text(text)
    assert cut.skipped == 0
    assert words_of(cut.quote(range(len(cut.segments)))) == words_of(text)


@examples(200)
@given(ANY_TEXT)
def test_candidates_are_spelled_as_in_their_segment(text):
    cut = cut_text(text)
    for segment in cut.segments:
        head = cut.heads[segment.block]
        shown = f"{head}\n{segment.text}"
        cells = {unescape(segment.text[start:end]) for _, start, end in segment.cells}
        spelled = {shown, unescape(shown), *cells} if segment.structured else {shown}
        for c in find_candidates(segment, head):
            plain = "<" in shown or any(c.text in s or c.form in fold(s) for s in spelled)
            assert plain, (c, segment)


def leaves(node: Node, text: str) -> object:
    """What a node holds: lists, keyed ones as pairs; scalars as text."""
    if node.items is None:
        return text[node.body : node.stop]
    return [(i.key, leaves(i, text)) if i.named else leaves(i, text) for i in node.items]


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ('{"a": {"b": [1, -2.5e3]}, "c": "x"}', [("a", [("b", ["1", "-2.5e3"])]), ("c", "x")]),
        ("[('a', b'int', None, 3)]", [["a", "int", "None", "3"]]),
        ("[('it\\'s', Decimal('1.50'))]", [["it\\'s", ["1.50"]]]),
        ("[(datetime.date(2020, 1, 31), -1.5)]", [[["2020", "1", "31"], "-1.5"]]),
        ("{'a': [1, 2], 'c': \"x\"}", [("a", ["1", "2"]), ("c", "x")]),
        ("Content(type='text', text='hello')", [("type", "text"), ("text", "hello")]),
        ('[{"a": 1}, {"a": 2}, {"a": "cut o', [[("a", "1")], [("a", "2")], [("a", "cut o")]]),
        ('{"a": 1}\n{"a": 2}', None),
    ],
)
def test_the_structure_of_a_text(text, held):
    roots = find_structure(text)
    if held is None:
        assert [text[r.start : r.end] for r in roots] == text.split("\n")
    else:
        assert [leaves(r, text) for r in roots] == [held]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words",
        "(see the user's guide) for what this does and for more that stands after it",
        "class A:\n    def f(self, x):\n        return [x]\n",
        "function f(a) {\n  if (a) { return a.b; }\n  let c = 1; let d = 2; return c + d;\n}\n" * 4,
        "[INFO] started; [ERROR] a request of the client failed and was sent again\n" * 3,
    ],
)
def test_prose_and_code_have_no_structure(text):
    assert find_structure(text) == []


def test_brackets_deeper_than_the_limit_belong_to_their_container():
    (root,) = find_structure("[1, " * 500 + "]" * 500)
    depth = 1
    while (inner := (root.items or [root])[-1]).items:
        root, depth = inner, depth + 1
    assert depth <= MAX_BRACKETS


def test_members_of_indented_json_are_quoted_with_their_indentation():
    lines = [{"sku": f"SKU-{n}", "name": "x" * 60} for n in range(6)]
    order = {"id": "ORD-1", "lines": lines, "status": "paid"}
    cut = cut_text(json.dumps(order, indent=2))
    lines = set(json.dumps(order, indent=2).split("\n"))
    for place in range(len(cut.segments)):
        quoted = cut.quote([place]).split("\n")
        assert all(line in lines for line in quoted if not line.startswith(GAP)), quoted


def test_code_is_quoted_with_its_indentation():
    code = "".join(
        f"class A{i}:\n    def f(self, x):\n        y = x + {i}\n        return y\n\n\n" for i in range(9)
    )
    cut = cut_text(code)
    assert len(cut.segments) >= 5
    place = next(n for n, s in enumerate(cut.segments) if "A4" in s.text)
    assert "class A4:\n    def f(self, x):\n        y = x + 4\n        return y" in cut.quote([place])
    assert cut.quote([place]).startswith(f"{GAP} line 25:\n")


def test_a_log_entry_keeps_its_traceback():
    entry = (
        "2024-01-05 ERROR request 17 failed\nTraceback (most recent call last):\n"
        '  File "a.py", line 3, in f\n    g()\n  File "b.py", line 9, in g\n    h()\nValueError: bad order A-17'
    )
    cut = cut_text("2024-01-05 INFO started the server on port 8080\n" + entry + "\n2024-01-05 INFO done\n")
    place = next(n for n, s in enumerate(cut.segments) if "ValueError" in s.text)
    assert entry.partition("\n")[2] in cut.quote([place])


@pytest.mark.parametrize(
    ("text", "head", "row"),
    [
        ("id,name,city\n" + "".join(f"{i},n{i},Rome\n" for i in range(30)), "id,name,city", "17,n17,Rome"),
        ("id\tname\n" + "".join(f"{i}\tn{i}\n" for i in range(30)), "id\tname", "17\tn17"),
        (
            "Found:\n\n| id | name |\n|---|---|\n" + "".join(f"| {i} | n{i} |\n" for i in range(30)),
            "| id | name |\n|---|---|",
            "| 17 | n17 |",
        ),
        (
            json.dumps({"values": [["Id", "Name"], *([i, f"n{i}"] for i in range(30))]}),
            '["Id", "Name"]',
            '[17, "n17"]',
        ),
    ],
)
def test_rows_stand_under_their_header_line(text, head, row):
    cut = cut_text(text)
    place = next(n for n, s in enumerate(cut.segments) if row in s.text)
    quote = cut.quote([place, len(cut.segments) - 1])
    assert quote.index(head) < quote.index(row)
    assert quote.count(head) == 1
    found = {c.form: c.key for c in find_candidates(cut.segments[place])}
    assert found["n17"] == "name"


def test_objects_stay_json():
    rows = [{"id": f"A-{i}", "name": f"Ann {i}", "tags": ["x", "y"]} for i in range(12)]
    cut = cut_text(json.dumps({"rows": rows}))
    quote = cut.quote([n for n, s in enumerate(cut.segments) if "A-7" in s.text])
    assert json.dumps(rows[7]) in quote
    assert quote.startswith(GAP + "\n") and quote.endswith("\n" + GAP)


def test_a_wrapper_costs_nothing():
    inner = "\n".join(f"line {i} of the result says {i * 7}" for i in range(12))
    part = {"type": "text", "text": inner, "annotations": None}
    wrapped = json.dumps({"content": [part], "isError": False})
    cut = cut_text(wrapped)
    assert cut.quote(range(len(cut.segments))) == inner
    printed = f"CallToolResult(content=[TextContent(type='text', text={inner!r})], isError=False)"
    assert "".join(s.text for s in cut_text(printed).segments) == "".join(s.text for s in cut.segments)


def test_json_in_a_string_is_quoted_unescaped_under_its_key():
    body = json.dumps([{"id": i, "title": f"Title {i}"} for i in range(12)])
    cut = cut_text(json.dumps([{"page": "P-1", "found": body}, {"page": "P-2", "found": body}]))
    place = next(n for n, s in enumerate(cut.segments) if "Title 7" in s.text)
    quote = cut.quote([place])
    assert '{"id": 7, "title": "Title 7"}' in quote
    assert quote.startswith(f'{GAP} [0].found in "page": "P-1":\n')


def test_the_values_of_a_long_list_are_named():
    cut = cut_text(json.dumps({"emails": [f"person{i}@example.org" for i in range(40)], "count": 40}))
    place = next(n for n, s in enumerate(cut.segments) if "person30@" in s.text)
    assert cut.quote([place]).startswith(f"{GAP} emails:\n")


def test_an_unfinished_wrapper_is_unfolded():
    inner = json.dumps({"cells": [{"address": f"A{i}", "value": f"Bob {i}"} for i in range(40)]})
    pieces = cut_text(json.dumps({"type": "text", "text": inner}, separators=(",", ":"))[:-30])
    found = {c.form for s in pieces.segments for c in find_candidates(s)}
    assert {"bob 1", "bob 38"} <= found


def test_an_unbroken_run_is_left_out_and_marked():
    cut = cut_text("before it\n" + "QUJD" * 500 + "\nafter it")
    assert cut.quote(range(len(cut.segments))).split("\n") == ["before it", GAP, "after it", GAP]
    assert cut.skipped >= 2000


def test_words_are_compared_without_humps_and_plurals():
    assert words_of("PetTypes countries") == ["pet", "type", "country"]


# the short form of long values

WORDS = ["paid", "twice", 'said "no"', "back\\slash", "é中", "A-17,", "in {two}", "[x]", "x" * 30]
LONG_WORDS = st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)
MEMBERS = st.one_of(LONG_WORDS, st.integers(), st.booleans(), st.lists(LONG_WORDS, max_size=2))
KEYS = st.sampled_from(["id", "note", "text", "state", "amount"])
OBJECTS = st.lists(st.dictionaries(KEYS, MEMBERS, max_size=5), min_size=1, max_size=6)


def is_shortened(short: object, value: object) -> bool:
    """Whether ``short`` is ``value`` with the ends of some long strings replaced by a gap mark."""
    if isinstance(value, dict) and isinstance(short, dict):
        return short.keys() == value.keys() and all(is_shortened(short[k], v) for k, v in value.items())
    if isinstance(value, list) and isinstance(short, list):
        return len(short) == len(value) and all(map(is_shortened, short, value))
    if isinstance(value, str) and isinstance(short, str) and short != value:
        return short.endswith(GAP) and value.startswith(short.removesuffix(GAP)) and len(short) < len(value)
    return type(short) is type(value) and short == value


@examples(200)
@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
def test_the_short_form_of_a_whole_object_is_valid_json(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    cut = cut_text(text)
    places = range(len(cut.segments))
    assume(not cut.skipped and cut.quote(places) == text)
    quote = cut.quote(places, places)
    assert is_shortened(json.loads(quote), value)
    assert len(quote) <= len(text)


@examples(200)
@given(st.one_of(ANY_TEXT, OBJECTS.map(json.dumps), OBJECTS.map(repr)), st.data())
def test_a_short_form_is_the_text_but_for_its_cuts(text, data):
    assume(GAP not in text)
    cut = cut_text(text)
    for segment in cut.segments:
        rest = segment.text
        for part in segment.short().split(GAP):
            at = rest.find(part)
            assert at >= 0
            rest = rest[at + len(part) :]
        assert segment.short() == segment.text or len(segment.short()) < len(segment.text)
    places = sorted(data.draw(st.sets(st.integers(0, max(0, len(cut.segments) - 1))))) if cut.segments else []
    short = [p for p in places if data.draw(st.booleans())]
    whole, quote = cut.quote(places), cut.quote(places, short)
    assert len(quote) <= len(whole)
    if not any(cut.segments[p].long_values() for p in short):
        assert quote == whole


def test_a_long_value_is_cut_to_its_first_words_and_an_id_never():
    note, short = "The customer has asked for it " * 2, "The customer has asked for…"
    rows = [{"id": f"ORD-{n}{'7' * 56}", "note": note, "state": "late"} for n in range(4)]
    cut = cut_text(json.dumps(rows))
    everything = range(len(cut.segments))
    assert json.loads(cut.quote(everything, everything)) == [{**row, "note": short} for row in rows]
    alone = cut_text(json.dumps({**rows[0], "remark": "x " * 80}))
    assert short in alone.quote(range(len(alone.segments)), range(len(alone.segments)))
    last = cut.quote([0, 1], [1])  # one of two
    assert last.count(short) == 1 and note in last


@pytest.mark.parametrize("mark", ["", "\t", "→"])
def test_a_gap_in_code_names_the_function_that_the_next_line_is_in(mark):
    lines = [
        "import os",
        "",
        "class Store:",
        "    def read(",
        "        self,",
        "    ) -> str:",
        "        return self.text",
        "",
    ]
    for n in range(30):
        lines += [f"    def method_{n}(self, value):", f"        self.value_{n} = compute_the_value_of(value, {n})",
                  f"        return self.value_{n} + another_value_of_the_store({n})", ""]  # fmt: skip
    lines += [
        "",
        "func (s *Store) Write(text string) error {",
        *(f"\ts.write(text, {n})" for n in range(40)),
        "}",
    ]
    text = "\n".join(f"{n:6d}{mark}{line}" if mark else line for n, line in enumerate(lines, 1))
    cut = cut_text(text)

    def gap(line):
        place = next(n for n, s in enumerate(cut.segments) if line in s.text)
        segment = cut.segments[place]
        begins = segment.text.split("\n")[0]
        return begins, cut.quote([place]).split("\n")[0]

    for line, within in (("return self.value_7 +", "Store"), ("s.write(text, 30)", "Write")):
        _, first = gap(line)
        assert first.startswith("… ") and f"in {within}" in first and first.endswith(":")
    both = [
        n for n, s in enumerate(cut.segments) if "s.write(text, 20" in s.text or "s.write(text, 38" in s.text
    ]
    assert cut.quote([both[0], both[-1]]).count("in Write:") == 1
    begins = next(n for n, s in enumerate(cut.segments) if "func (s *Store) Write" in s.text)
    assert "in Write:" not in cut.quote([begins, both[-1]])  # its first line stands just before
    assert "in " not in cut_text("\n".join(["type of order: new", "class of 1999"] * 30)).quote([2])


BASE64 = [
    "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4//8/w38GIAXDIBKE",
    "0DHxgljNBAAO9TXL0Y4OHwAAAABJRU5ErkJggg8kR9XzO1Fi7vyzgN1PJvfoP8BadyVdWdAZmds1",
]
DUMP = [
    "00000000: 3678 748a cb44 a48a fc16 5a1b 0c2d 11ff  6xt..D....Z..-..",
    "00000010: 89 50 4e 47 0d 0a 1a 0a 00 00 00 0d 49 48 44 52  .PNG",
]
DRAWN = "M10.5 20.25 L30.5 40 C50 60.1 70 80.2 90.3 10 " * 12


@pytest.mark.parametrize(
    "noise", [BASE64, DUMP, [f'<path d="{DRAWN}" fill="none"/>']], ids=["base64", "dump", "drawing"]
)
def test_base64_hex_dumps_and_drawings_are_left_out_and_marked(noise):
    cut = cut_text("\n".join(["order A-1 is paid", *noise, "order A-2 is open"]))
    quote = cut.quote(range(len(cut.segments)))
    assert quote.startswith("order A-1 is paid")
    assert "order A-2 is open" in quote
    assert len(quote) < 450
    assert cut.skipped > 60
    assert GAP in quote


@pytest.mark.parametrize("line", [
    BASE64[0],  # alone it may be a key
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\n" * 2,  # digests
    "id,2024,3.5,4.25,17,22.75,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18",
    f"Free cells: {', '.join(f'A{n}' for n in range(1, 90))}",
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, note TEXT)",
], ids=["key", "digests", "numbers", "cells", "sentence"])  # fmt: skip
def test_a_key_digests_and_rows_of_numbers_are_no_noise(line):
    cut = cut_text(f"first line\n{line.strip()}\nlast line")
    assert line.strip() in cut.quote(range(len(cut.segments)))


PYTHON = (
    "class Store:\n    limit = 10\n    items: dict[str, str]\n    kinds = ('new', 'used', 'broken')\n\n    @property\n    def size(self) -> int:\n"
    '        """How many items are in it."""\n\n        return len(self.items)\n'
)
TYPESCRIPT = (
    "export class Store {\n  private items = new Map<string, Item>();\n  private readonly limit = 10;\n\n"
    "  // How many items are in it\n  async count(kind: string): Promise<number> {\n    if (!this.items) {\n"
    "      return 0;\n    }\n\n    return this.items.size;\n  }\n"
)
ARROW = (
    "import { items } from './items';\nconst unrelated = items.filter((item) => item.kind === 'none');\n\n"
    "export const count = async (kind: string) => {\n  const found = items.filter((i) => i.kind === kind);\n\n"
    "  return found.length;\n};\n"
)
GO = (
    'package store\n\nvar errNothing = errors.New("there is nothing in the store that has this kind")\n\n'
    "// Count returns how many items are in it.\nfunc (s *Store) Count(kind string) (int, error) {\n"
    "\tif s.items == nil {\n\t\treturn 0, errNothing\n\t}\n\n\treturn len(s.items[kind]), nil\n}\n"
)
RUST = (
    "impl Store {\n    const LIMIT: usize = 10; // more than this many are refused by the caller of it\n\n"
    "    #[inline]\n    pub(crate) fn count(&self, kind: &str) -> usize {\n        let found = self.items.get(kind);\n\n"
    "        found.map_or(0, Vec::len)\n    }\n"
)
JAVA = (
    "public class Store {\n    private final Map<String, List<Item>> items = new HashMap<>(16);\n\n    @Override\n"
    "    public int count(String kind) throws StoreException {\n        List<Item> found = items.get(kind);\n\n"
    "        return found == null ? 0 : found.size();\n    }\n"
)
C = (
    '#include "store.h"\n\nstatic const char *const KINDS[] = {"new", "used", "broken", "unknown", "other"};\n\n'
    "/* How many items are in it. */\nint count(const struct store *s, const char *kind)\n{\n\tint found = 0;\n\n"
    "\tfor (size_t n = 0; n < s->size; n++)\n\t\tfound += !strcmp(s->items[n].kind, kind);\n\treturn found;\n}\n"
)
CODE = {
    "python": (
        PYTHON,
        "    @property\n",
        "return len(self.items)",
        "Store.{}",
        "    def {}(self):\n        {}\n",
    ),
    "typescript": (TYPESCRIPT, "  // How many", "\n  }", "Store.{}", "  {}() {{\n    {}\n  }}\n"),
    "arrow": (ARROW, "export const count", "};", "{}", "function {}() {{\n    {}\n}}\n"),
    "go": (GO, "// Count", "\n}", "{}", "func {}() {{\n\t{}\n}}\n"),
    "rust": (RUST, "    #[inline]", "\n    }", "Store.{}", "    fn {}() {{\n        {}\n    }}\n"),
    "java": (JAVA, "    @Override", "\n    }", "Store.{}", "    void {}(int a) {{\n        {}\n    }}\n"),
    "c": (C, "/* How", "\n}", "{}", "static void {}(void)\n{{\n\t{}\n}}\n"),
}


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("language", CODE)
def test_a_short_definition_is_a_piece_and_a_line_of_a_long_one_names_it(language, numbered):
    code, begin, end, name, long = CODE[language]
    filler = "\n        ".join(
        f"call_number({n}, another_argument_{n}, a_third_argument_{n});" for n in range(30)
    )
    text = f"{code}\n{long.format('reckon', filler)}"
    start, stop = text.index(begin), text.index(end, text.index(begin)) + len(end)
    lines = text.split("\n")
    if numbered:
        lines = [f"{n:6d}\t{line}" for n, line in enumerate(lines, 1)]
    first, last = text.count("\n", 0, start), text.count("\n", 0, stop)
    cut = cut_text("\n".join(lines))
    whole = "\n".join(lines[first : last + 1]).rstrip()
    assert [s.text for s in cut.segments if s.text.strip("\n") == whole.strip("\n")]
    place = next(n for n, s in enumerate(cut.segments) if "call_number(17," in s.text)
    assert cut.quote([place]).split("\n")[0].endswith(f"in {name.format('reckon')}:")
    whole_lines = {line.strip() for line in lines}
    assert all(line.strip() in whole_lines for s in cut.segments for line in s.text.split("\n"))


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize(
    ("code", "owner"),
    [
        ("def first():\n    MANY\n\n# HERE\nLIMIT = 5\n", ""),
        ("class Store:\n    def first(self):\n        MANY\n\n    # HERE\n    LIMIT = 5\n", "Store"),
        ("def first():\n    MANY\n    # HERE\n    return\n", "first"),
        ("int first(void)\n{\n\tMANY\n}\n\n// HERE\nstatic int\nsecond(void)\n{\n\tMANY\n}\n", ""),
        ("int first(void)\n{\n\tMANY\n}\n\n#if HERE\n", ""),
        ("export const first = () => {\n  MANY\n};\n\n/**\n * HERE\n */\nexport const second: number = 2;\n", ""),
        ("      int\n      first()\n      {\n\tMANY\n\n\tHERE\n      }\n", "first"),
        ("impl fmt::Display for Store {\n  fn show(&self) {\n    MANY\n    HERE\n  }\n}\n", "Display.show"),
        ("Store::Store(int most)\n  : Base(most)\n{\n    MANY\n    HERE\n}\n", ""),
    ],
)  # fmt: skip
def test_a_line_is_in_no_definition_that_ends_before_it(code, owner, numbered):
    """Neither a comment nor an empty line goes on with the definition above where the code below does not."""
    many = [f'call_number({n}, "some words by which it is no short definition");' for n in range(9)]
    code = code.replace("HERE", "HERE" * 9)
    lines = [n.replace("MANY", m) for n in code.split("\n") for m in (many if "MANY" in n else [""])]
    if numbered:
        lines = [f"{n:6d}\t{line}" for n, line in enumerate(lines, 1)]
    [piece] = [s for s in cut_text("\n".join(lines), width=40).segments if "HERE" in s.text]
    assert piece.owner == owner


def test_lines_of_a_search_are_in_no_function_of_a_line_before_that_is_left_out():
    lines = [
        "12:def first(value):",
        "13:    return value",
        *(f"{n}:    total = {n}" for n in range(200, 260, 3)),
    ]
    assert {s.owner for s in cut_text("\n".join(lines)).segments if "total" in s.text} == {""}


@pytest.mark.parametrize(
    "line",
    [
        "!function(e,t){" + "for(var n=0;n<e.length;n++){t(e[n],n);r.push(e);}" * 30 + "}(a,b);",
        '<path fill="none" d="M12.5 20.25L30 40.75C31 42 33.25 44 35 45.5Z M1 2L3 4"/>',
    ],
)
def test_minified_code_and_drawings_are_in_no_piece(line):
    cut = cut_text(f"order A-1 is paid\n{line}\norder A-2 is open")
    shown = ["order A-1 is paid", GAP, "order A-2 is open", GAP]
    assert cut.quote(range(len(cut.segments))).split("\n") == shown
    assert cut.skipped == len(line)
    ids = ",".join(f"ORD-{n}" for n in range(300))  # a long line of values stays
    assert "ORD-299" in cut_text(f"the orders\n{ids}").segments[-1].text


def test_a_gap_names_the_entry_of_a_list_that_the_quote_goes_on_in():
    def order(n):
        lines = [
            {"sku": f"SKU-{n}-{m}", "note": "a note on it " * 9, "packed": {"by": f"U-{n}{m}"}}
            for m in range(3)
        ]
        return {"type": "order", "total": 7 * n, "customer_id": f"C-{n}", "id": f"ORD-{n}", "note": "some words " * 12,
                "lines": lines, "status": "late"}  # fmt: skip

    cut = cut_text(json.dumps({"result": {"orders": [order(n) for n in range(5)]}}))

    def quoted(*values):
        return cut.quote([next(n for n, s in enumerate(cut.segments) if value in s.text) for value in values])

    late = [n for n, s in enumerate(cut.segments) if '"status": "late"' in s.text][3]
    assert '… in "id": "ORD-3"' in cut.quote([late]).split("\n")[0]
    assert '… in "id": "ORD-2", "sku": "SKU-2-1":\n' in quoted("U-21")
    assert '… in "id": "ORD-3"' not in quoted("ORD-3") and quoted("ORD-3", "U-31").count('"id": "ORD-3"') == 2
    named = cut_text(json.dumps({f"ORD-{n}": order(n) for n in range(5)}))
    assert '… in "ORD-4", "sku": "SKU-4-0":\n' in named.quote(
        [next(n for n, s in enumerate(named.segments) if "U-40" in s.text)]
    )


@pytest.mark.parametrize(("mark", "begin", "end"), [(",", "", ""), (" | ", "| ", " |")])
def test_a_gap_within_a_long_row_names_row_and_column(mark, begin, end):
    rows = [
        ["order", "remark", "state"],
        *([f"ORD-{n}", f"words of {n} " * 40, f"open-{n}"] for n in range(4)),
    ]
    lines = [f"{begin}{mark.join(row)}{end}" for row in rows]
    cut = cut_text("\n".join([lines[0], "|---|---|---|", *lines[1:]] if begin else lines))
    last = next(n for n, s in enumerate(cut.segments) if "open-2" in s.text)
    assert cut.quote([last]).startswith(lines[0]) and "\n… order ORD-2 state:\n" in cut.quote([last])
    assert cut.quote(range(len(cut.segments))).count("…") == 0


def test_what_names_an_entry_is_one_short_line():
    rest = {"note": "some words " * 12, "more": "other words " * 12}
    entries = [{"id": f"first {n}\nsecond", **rest} for n in range(3)] + [
        {"id": f"{n}" * 300, **rest} for n in range(3)
    ]
    for text in (
        json.dumps(entries),
        str(entries).replace("\\n", "\n"),
        json.dumps({"k" * 300: rest, "l" * 300: rest}),
    ):
        cut = cut_text(text)
        gaps = [cut.quote([place]).split("\n")[0] for place in range(1, len(cut.segments))]
        assert all(len(gap) < 200 for gap in gaps if gap.startswith(GAP))


LISTINGS = {
    "tree": lambda rows: [".", "├── docs", *rows("│   ├── page"), "│   └── sub", *rows("│       ├── note"), "└── src", *rows("    ├── mod")],
    "tree in ASCII": lambda rows: [".", "|-- docs", *rows("|   |-- page"), "|   `-- sub", *rows("|       |-- note"), "`-- src", *rows("    |-- mod")],
    "ls -R": lambda rows: ["docs:", "sub", "", "docs/page:", *rows("page"), "", "docs/sub:", *rows("note"), "", "./src:", *rows("mod")],
    "bullets": lambda rows: ["- docs/", *rows("  - page"), "  - sub/", *rows("    - note"), "- src/", *rows("  - mod")],
}  # fmt: skip


@pytest.mark.parametrize("form", LISTINGS)
def test_a_gap_names_the_folder_of_an_entry(form):
    text = "\n".join(LISTINGS[form](lambda name: [f"{name}_{n}.md" for n in range(30)]))
    cut = cut_text(text)
    places = [next(i for i, s in enumerate(cut.segments) if name in s.text) for name in ("note_20", "mod_20")]
    note, mod = (line for line in cut.quote(places).split("\n") if line.startswith("…") and line != "…")
    assert note.endswith(" in docs/sub:") and mod.rstrip(":").endswith("src")


@pytest.mark.parametrize("text", ["Notes:\n" + "one\n" * 90, "- one\n  - two\n" * 40, "a | b\n+ c\n" * 40])
def test_lines_that_are_no_listing_have_no_folder(text):
    assert not any(s.owner for s in cut_text(text).segments)


def test_of_a_page_its_words_are_quoted_without_the_numbers_of_its_lines():
    items = "\n".join(f'<li class="item"><a class="link" href="/t/{n}">Talk {n}</a></li>' for n in range(60))
    page = f"<!doctype html><html><head><style>a{{}}</style></head><body><ul>\n{items}\n</ul></body></html>"
    for text in (page, json.dumps({"type": "text", "text": page})):
        cut = cut_text(text, pages=True)
        assert "class" not in "".join(s.text for s in cut.segments) and cut.sources[0] == text
        quote = cut.quote([len(cut.segments) // 2])
        assert re.search(r"^- \[Talk \d+\]\(/t/\d+\)$", quote, re.M) and "line" not in quote
    assert "class" in cut_text(page).segments[-1].text + cut_text(page).segments[0].text
