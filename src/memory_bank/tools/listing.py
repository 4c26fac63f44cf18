"""list_records: a session's records in a line each, page by page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memory_bank.context.fetched import GET_RECORD, LIST_RECORDS
from memory_bank.context.render import fence
from memory_bank.tools.answers import Answer, check_names, sendable
from memory_bank.tools.selection import Nothing, Refused
from memory_bank.transcript.jsontext import compact
from memory_bank.transcript.shortening import cut_at_edge

PAGE = 50
_ARGUMENT_CHARS = 160
_LAST = 10**9


def list_page(state: Any, given: Mapping[str, Any], room: int) -> Answer:
    """The answer to ``list_records``: at most 50 records after a number, oldest first. Raises Refused."""
    check_names(given, ("after", "tool"), LIST_RECORDS)
    after, tool = _after(given.get("after")), given.get("tool")
    if tool is not None and not isinstance(tool, str):
        raise Refused("tool is the name of a tool, or null for all.")
    tool = tool or None
    lines = state.fact_store.page(after, PAGE + 1, tool)
    total: int = state.fact_store.size()
    if not lines:
        raise Nothing(_nothing(total, after, tool))
    rows: list[str] = []
    used = 0
    for line in lines[:PAGE]:
        arguments = cut_at_edge(" ".join(line.arguments.split()), _ARGUMENT_CHARS, marked=True)
        name = " ".join(line.tool_name.split())
        row = (
            f"#{line.number} trace_id {line.trace_id}, {name}, step {line.step_id}, "
            f"{line.output_bytes:,} bytes, arguments: {arguments}"
        )
        used += len(row) + 1
        if used > room and rows:
            break
        rows.append(row)
    shown = lines[: len(rows)]
    last = shown[-1].number
    of = f" of {compact(tool[:80])}" if tool else ""
    more = f" More: {LIST_RECORDS} with after={last}." if len(lines) > len(shown) else ""
    note = (
        f"[{len(shown)} record{'s' if len(shown) > 1 else ''}{of}, up to #{last} of #{total}.{more} "
        f"An output exactly: {GET_RECORD} with its trace_id.]"
    )
    told = tuple(
        {
            "number": x.number,
            "trace_id": x.trace_id,
            "step_id": x.step_id,
            "tool_name": sendable(x.tool_name),
            "output_bytes": x.output_bytes,
        }
        for x in shown
    )
    return Answer(fence("\n".join(rows)) + f"\n{note}", records=told)


def _after(value: Any) -> int:
    text = str(0 if value is None or value == "" else value).strip().removeprefix("#")
    if isinstance(value, bool) or not text.isascii() or not text.isdigit():
        raise Refused("after is the number of the record after which the page begins, or null for the first.")
    return min(int(text[:12]), _LAST)


def _nothing(total: int, after: int, tool: str | None) -> str:
    if not total:
        return "No tool output is stored in this session yet."
    if tool is not None:
        where = f" after #{after}" if after else ""
        return f"No record{where} is of a tool {compact(tool[:80])}; {LIST_RECORDS} without tool lists all."
    return f"There is no record after #{after}: this session has #1 to #{total}."
