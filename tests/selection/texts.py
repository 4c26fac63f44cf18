"""Texts that tools return, for hypothesis: prose, code, logs, tables, JSON, broken JSON, objects; an index of calls."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from memory_bank.selection.index import EvidenceIndex


def words(text: str) -> int:
    return (len(text.encode("utf-8", "replace")) + 3) // 4


def add(index: EvidenceIndex, number: int, tool: str, arguments: object, output: str, note: str = "") -> None:
    """Add a call of one interaction, with what the agent said before it."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    index.add_remark(interaction=number, text=note)
    index.add_call(trace_id=f"t{number}", interaction=number, tool=tool, arguments=text, output=output)


def filled(*calls, count=words) -> EvidenceIndex:
    """An index of calls: outputs, or (tool, arguments, output[, note])."""
    index = EvidenceIndex(count_tokens=count)
    for number, call in enumerate(calls):
        add(index, number, *(("get", "{}", call) if isinstance(call, str) else call))
    return index


# Texts of any kind: lone surrogates, control characters, code, logs, JSON and broken JSON, addresses, paths.
CHARACTERS = st.text(st.characters(codec=None, categories=["L", "N", "P", "S", "Z", "C"]), max_size=60)
TOKENS = st.one_of(
    CHARACTERS,
    st.from_regex(r"(https?:?/{0,3})?[\w.~@%?&=#/-]{0,40}", fullmatch=True),
    st.from_regex(r"[{}\[\]()<>\"'`\\,:;|*# \n\t-]{0,12}", fullmatch=True),
    st.from_regex(r"-?[0-9]{1,30}([.,:/-][0-9]{1,12}){0,4}", fullmatch=True),
    st.sampled_from(
        [
            "\ud83d", "\udc00x", "\x00", "\u2028", "ß" * 5, "İ" * 4, "Ŀ.", "²³¼", "٣٤٥٦", "Traceback (most recent call last):",
            "def f(x: int) -> str:\n    return {'a': [x]}", "2024-01-05T10:00:00 ERROR user_id=42 failed", "a@b.co", "\\ud800\\n",
            "[('a', 1), ('b", "datetime.date(2020, 1, 2)", "<td>A-1</td>", "key: value", "| a | b |", "isError: true", "NaN", "1e999",
        ]
    ),
)  # fmt: skip
TEXTS = st.lists(TOKENS, max_size=25).flatmap(
    lambda parts: st.sampled_from([" ", "\n", "", ", ", "/", "\\n"]).map(lambda gap: gap.join(parts))
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), CHARACTERS, TEXTS),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(CHARACTERS, inner, max_size=5),
    max_leaves=15,
)
CODE = st.lists(
    st.sampled_from(
        [
            "def f(x):", "    if x:", "\treturn {'a': [x]}", "}", "", "@@ -1,4 +1,5 @@", "+    y = f(x)  # A-17", "class A:",
            "Traceback (most recent call last):", '  File "a.py", line 3', "ValueError: bad", "2024-01-05 ERROR id=4", "a,b,c", "1,2,3",
            "| a | b |", "|---|---|", "| 1 | 2 |", "id\tname", "1\tAnn Lee", "## Heading", "- item: x", "w " * 200, "Q" * 900,
        ]
    ),
    max_size=40,
).flatmap(lambda lines: st.sampled_from(["\n", "\r\n"]).map(lambda end: end.join(lines)))  # fmt: skip
ANY_TEXT = st.one_of(
    TEXTS,
    CODE,
    CODE.map(lambda code: json.dumps([{"id": "A-1", "code": code}, {"id": "A-2", "code": code}], indent=2)),
    CODE.map(lambda code: f"Result(type='text', text={code!r}, error=None)"),
    JSON.map(json.dumps),
    JSON.map(lambda value: json.dumps(value, ensure_ascii=False)),
    JSON.map(repr),
    JSON.map(lambda value: json.dumps({"content": [{"type": "text", "text": json.dumps(value)}]})),
    st.lists(JSON.map(json.dumps), max_size=4).map("\n".join),
    st.tuples(JSON.map(json.dumps), st.integers(0, 200)).map(lambda cut: cut[0][: cut[1]]),
)
