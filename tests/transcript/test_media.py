"""Images, files and audio in outputs: every form of a part is named, and base64 is never quoted."""

from __future__ import annotations

import base64
import json
import random

import pytest

from memory_bank import InteractionRecord
from memory_bank.transcript.media import media_of, without_base64
from memory_bank.transcript.messages import content_text, readable_output

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(84_000)).decode()
PDF = base64.b64encode(b"%PDF-1.7\n" + random.Random(2).randbytes(2_100_000)).decode()
URL = "https://shop.example/chart.png"

PARTS = {
    "chat image": ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}, "[image/png, 84 kB]"),
    "chat address": ({"type": "image_url", "image_url": {"url": URL}}, f'[image, "{URL}"]'),
    "chat file": ({"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}},
                  '[application/pdf, 2 MB, "a.pdf"]'),
    "chat audio": ({"type": "input_audio", "input_audio": {"data": PNG[50:], "format": "wav"}}, "[audio/wav, 84 kB]"),
    "input_image": ({"type": "input_image", "image_url": f"data:image/jpeg;base64,{PNG}", "detail": "auto"},
                    "[image/jpeg, 84 kB]"),
    "input_image of a file": ({"type": "input_image", "file_id": "file-1"}, "[image]"),
    "input_file": ({"type": "input_file", "filename": "chart.png", "file_data": f"data:image/png;base64,{PNG}"},
                   '[image/png, 84 kB, "chart.png"]'),
    "input_file by address": ({"type": "input_file", "file_url": URL}, f'[file, "{URL}"]'),
    "screenshot": ({"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PNG}"}, "[image/png, 84 kB]"),
    "Messages image": ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                       "[image/png, 84 kB]"),
    "Messages address": ({"type": "image", "source": {"type": "url", "url": URL}}, f'[image, "{URL}"]'),
    "Messages document": ({"type": "document", "title": "A\nB",
                           "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
                          '[application/pdf, 2 MB, "A\\nB"]'),
    "MCP image": ({"type": "image", "data": PNG, "mimeType": "image/png"}, "[image/png, 84 kB]"),
    "MCP resource": ({"type": "resource", "resource": {"uri": "file:///a.bin", "mimeType": "application/pdf", "blob": PDF}},
                     '[application/pdf, 2 MB, "file:///a.bin"]'),
    "LangChain": ({"type": "image", "base64": PNG, "mime_type": "image/png", "id": "1"}, "[image/png, 84 kB]"),
    "LangChain 0.3": ({"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
                      "[image/png, 84 kB]"),
    "Gemini": ({"inline_data": {"mime_type": "image/png", "data": PNG}}, "[image/png, 84 kB]"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_named_by_kind_size_and_name(name):
    part, line = PARTS[name]
    media = media_of(part)
    assert media is not None
    assert media.line == line
    content = [{"type": "text", "text": "the chart:"}, part]
    record = InteractionRecord.create(1, "plot", {}, content)
    assert readable_output(record)[1] == f"the chart:\n{line}"
    assert record.raw_output is content
    if "type" in part:
        assert content_text(content) == f"the chart:\n{line}"
    has_address = "address" in name or name == "input_image of a file"
    assert has_address or media.data in (PNG, PDF, PNG[50:])


OTHERS = [
    {"type": "file", "name": "a.py", "url": URL, "sha": "0" * 40, "git_url": URL},  # an entry of a code host
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "the words of it"}},
    {"type": "order", "data": "two words"},
    {"name": "Oslo", "url": URL},
    "data:image/png;base64,AAAA",
    None,
    7,
]


@pytest.mark.parametrize("value", OTHERS)
def test_what_is_no_part_is_shown_as_it_is(value):
    assert media_of(value) is None
    record = InteractionRecord.create(1, "look", {}, [value, {"n": 1}])
    assert json.loads(readable_output(record)[1]) == [value, {"n": 1}]


TEXTS = [
    (json.dumps({"type": "image", "data": PNG, "mimeType": "image/png"}), '"data":"[image/png, 84 kB]"'),
    (f"see data:image/gif;base64,{PNG}, which", "see [image/gif, 84 kB], which"),
    (PNG, "[image/png, 84 kB]"),
    (f'{{"file": "{PDF}"}}', '{"file":"[application/pdf, 2 MB]"}'),
    (json.dumps({"bin": PNG[50:3_050]}).replace("/", "\\/"), "[base64, 2 kB]"),
]


@pytest.mark.parametrize(("text", "named"), TEXTS)
def test_base64_in_a_text_is_named(text, named):
    record = InteractionRecord.create(1, "look", {}, None)
    record = InteractionRecord(**{f: getattr(record, f) for f in record.__slots__} | {"output_text": text})
    shown = readable_output(record)[1]
    assert named.replace(" ", "") in shown.replace(" ", "")
    assert len(shown) < 200
    assert record.output_text is text


@pytest.mark.parametrize(
    "text",
    [
        "0123456789abcdef" * 200,
        "/".join(["usr", "share", "lib"] * 300),
        "eyJhbGciOiJSUzI1NiJ9." + PNG[60:760] + "." + PNG[60:400],
        "cursor=" + PNG[60:900],
        "x" * 50_000,
        json.dumps([{"id": f"ORD-{i}", "at": "2026-01-01T00:00:00Z"} for i in range(2_000)]),
    ],
)
def test_ids_paths_tokens_and_cursors_stay(text):
    assert without_base64(text) == text
