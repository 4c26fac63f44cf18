"""No source pushes out what others showed: those whose values only calls to themselves use have a share."""

import json

from memory_bank.selection.effects import source_of
from memory_bank.selection.index import EvidenceIndex


def count(text: str) -> int:
    return (len(text) + 3) // 4


def rows(name: str, n: int) -> list[dict[str, str]]:
    return [{"ref": f"{name}-{n}{i:03}", "state": "open", "city": f"Town {name}{n}{i}"} for i in range(20)]


def selected(*, used_by_another: bool) -> dict[str, int]:
    """By tool the tokens of what is selected, after a tool came back twenty times with what its own calls take."""
    index = EvidenceIndex(count_tokens=count)
    calls = [("list_orders", {"page": n}, rows("ORD", n)) for n in range(6)]
    last: dict[str, object] = {"start": "now"}
    for n in range(20):
        found = rows("QX", n)
        calls.append(("feed", last, found))
        if used_by_another:
            calls.append(("pay_item", {"ref": found[3]["ref"]}, []))
        last = {"ref": found[7]["ref"], "beside": found[8]["ref"], "third": found[9]["ref"]}
    for n, (tool, arguments, output) in enumerate(calls, 1):
        given = {"trace_id": str(n), "interaction": n, "tool": tool}
        index.add_call(**given, arguments=json.dumps(arguments), output=json.dumps(output))
    selection = index.select(anchor=["Look at all."], tail_interaction=len(calls), budget=1_500)
    tokens: dict[str, int] = {}
    for segment in selection.gains:
        tool = index.tables.parsed[index.tables.place_of(segment)[0]].tool
        tokens[tool] = tokens.get(tool, 0) + int(index.tables.segments["tokens"][segment])
    return tokens


def test_a_tool_whose_values_only_its_own_calls_use_cannot_push_out_the_others():
    tokens = selected(used_by_another=False)
    assert tokens["list_orders"] > tokens.get("feed", 0)


def test_a_tool_whose_values_others_use_keeps_its_worth():
    tokens = selected(used_by_another=True)
    assert tokens["feed"] > tokens.get("list_orders", 0)


def test_a_source_is_a_tool_with_its_origin():
    same = [source_of("Read", json.dumps({"file_path": f"/w/src/{name}.py"})) for name in "ab"]
    assert same[0] == same[1] != source_of("Read", '{"file_path": "/w/docs/a.md"}')
    assert source_of("fetch", '{"url": "https://a.example/x"}') != source_of(
        "fetch", '{"url": "https://b.example/x"}'
    )
    assert source_of("bash", '{"command": "cd /w && git log"}') == source_of(
        "bash", '{"command": "git show"}'
    )
    assert source_of("list_orders", '{"page": 1}') == source_of("list_orders", '{"page": 2}')
