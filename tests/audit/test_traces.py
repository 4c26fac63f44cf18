"""Trace files: what is a trace, what is a broken line, what is no file."""

import gzip
import json
import os
import threading

import pytest

from memory_bank.audit.traces import BrokenLine, Trace, read_traces
from memory_bank.errors import TraceFileError

GOOD = json.dumps({"id": "a", "messages": [{"role": "user", "content": "ü\u2028"}], "tools": [], "task": "t"})


def written(tmp_path, data: str | bytes, name="t.jsonl"):
    file = tmp_path / name
    file.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    return file


@pytest.mark.parametrize("packed", [False, True])
def test_traces_in_order(tmp_path, packed):
    data = f"\ufeff{GOOD}\n\n  \r\n{GOOD}".encode()
    file = written(tmp_path, gzip.compress(data) if packed else data)
    assert [t.id for t in read_traces(file)] == ["a", "a"]
    first = next(read_traces(str(file)))
    assert first == Trace("a", [{"role": "user", "content": "ü\u2028"}], [], "t")


def test_carriage_returns_are_blanks(tmp_path):
    traces = list(read_traces(written(tmp_path, '{"id": 1,\r"messages":\r []}\r\n{"messages": []}\r\n')))
    assert [t.id for t in traces] == ["1", "t.jsonl:2"]


def test_ids_and_fields_of_any_kind(tmp_path):
    lines = [
        {"id": 0, "messages": []},
        {"id": "", "messages": []},
        {"id": None, "messages": [], "tools": "x", "task": 5},
        {"id": ["x"], "messages": [1, None]},
    ]
    traces = list(read_traces(written(tmp_path, "\n".join(map(json.dumps, lines)))))
    assert [t.id for t in traces] == ["0", "t.jsonl:2", "t.jsonl:3", "['x']"]
    assert (traces[2].tools, traces[2].task) == (None, "")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("nonsense", "not JSON"),
        ('{"messages": [' + "9" * 5000 + "]}", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "not a JSON object"),
        ('"x"', "not a JSON object"),
        ('{"id": 1}', 'no list "messages"'),
        ('{"messages": {"role": "user"}}', 'no list "messages"'),
        ('{"messages": null}', 'no list "messages"'),
    ],
)
def test_a_broken_line_stops_nothing(tmp_path, line, reason):
    file = written(tmp_path, f"{GOOD}\n{line}\n{GOOD}\n")
    first, broken, last = read_traces(file)
    assert isinstance(first, Trace)
    assert isinstance(last, Trace)
    assert isinstance(broken, BrokenLine)
    assert (broken.file, broken.line) == (str(file), 2)
    assert reason in broken.reason
    assert len(broken.reason) < 200


def test_odd_characters_come_as_they_are(tmp_path):
    text = "lone \ud800 nul \x00 <|endoftext|>"
    file = written(
        tmp_path, json.dumps({"messages": [{"content": text}]}) + "\n" + '{"messages": ["\ud800"]}'
    )
    escaped, raw = read_traces(file)
    assert escaped.messages[0]["content"] == text
    assert len(raw.messages) == 1


def test_files_that_cannot_be_read(tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(TraceFileError, match="cannot be read"):
            list(read_traces(path))
    packed = gzip.compress("\n".join([GOOD] * 2000 + [json.dumps(os.urandom(50_000).hex())]).encode())
    for damaged in (packed[:-1000], packed[:-4], packed[: len(packed) // 2] + b"\0" * 100):
        with pytest.raises(
            TraceFileError, match=r"cannot be read beyond line \d+: .*; check or replace it\."
        ):
            list(read_traces(written(tmp_path, damaged, "cut.gz")))


def test_empty_files(tmp_path):
    assert list(read_traces(written(tmp_path, b""))) == []
    assert list(read_traces(written(tmp_path, gzip.compress(b"")))) == []


def test_a_pipe_and_one_line_at_a_time(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed() -> None:
        with open(pipe, "w", encoding="utf-8") as f:
            f.write(f"{GOOD}\n" * 3)

    thread = threading.Thread(target=feed)
    thread.start()
    assert len(list(read_traces(pipe))) == 3
    thread.join()
