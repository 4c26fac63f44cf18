"""Images, files and audio in what tools returned: how a text names them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

from memory_bank.transcript.jsontext import plain

_RUN = re.compile(
    r"(?:data:([\w.+/-]++)[;\w=.-]*;base64,|(?<![\w+/-]))((?:[A-Za-z0-9+/_-]|\\/){200,}+)={0,2}"
)
_LONG = re.compile(r"[A-Za-z0-9+/_\\-]{200}")  # in every such run, and quickly looked for
_UNKNOWN = 1_024
"""Characters from which a run is taken to be data of an unknown kind: ids and cursors are shorter."""
_BEGINNINGS = {
    "iVBORw0KGg": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp",
    "JVBERi0": "application/pdf", "SUQz": "audio/mpeg", "T2dnUw": "audio/ogg", "UEsDB": "application/zip",
}  # fmt: skip
_BODIES = ("source", "file", "image_url", "input_audio", "resource", "inline_data")
_DATA = ("data", "base64", "file_data", "blob")
_ADDRESS = ("url", "image_url", "file_url", "uri")
_KIND = ("media_type", "mimeType", "mime_type")
_NAME = ("filename", "name", "title", "display_name")
_OTHER = (
    "type", "detail", "format", "file_id", "id", "source_type", "annotations", "_meta", "citations", "context",
)  # fmt: skip
_KNOWN = frozenset({*_BODIES, *_DATA, *_ADDRESS, *_KIND, *_NAME, *_OTHER})


class Media(NamedTuple):
    """A part that is not text: its media type, or else its type, its base64, and its name or address."""

    kind: str
    data: str
    name: str = ""

    @property
    def line(self) -> str:
        """Its description in a text: ``[image/png, 84 kB, "chart.png"]``."""
        size = len(self.data) * 3 // 4
        amount = f"{size / 1e3:.0f} kB" if size < 1e6 else f"{size / 1e6:,.0f} MB"
        amount = f"{size:,} bytes" if size < 1e3 else amount
        name = json.dumps(self.name[:200], ensure_ascii=False) if self.name else ""
        return f"[{', '.join(filter(None, (self.kind, amount if size else '', name)))}]"


def media_of(part: object) -> Media | None:
    """The image, file or audio that a content part of any API holds, or None."""
    if isinstance(part, str) or (isinstance(part, Mapping) and not part.keys() <= _KNOWN):
        return None
    members = plain(part)
    if not isinstance(members, dict):
        return None
    bodies = [members, *(members[k] for k in _BODIES if isinstance(members.get(k), dict))]

    def first(*keys: str) -> str:
        return next((b[k] for b in bodies for k in keys if isinstance(b.get(k), str) and b[k]), "")

    data, address = first(*_DATA), first(*_ADDRESS)
    head, is_url, rest = (data if data.startswith("data:") else address).partition(";base64,")
    data, address = (rest, "") if is_url else (data, address)
    is_base64 = bool(data) and re.match(r"[\w+/-]+=*\s*\Z", data[:200], re.A) is not None
    if not is_base64 and (data or "type" not in members or not (address or first("file_id"))):
        return None
    label = str(members.get("type", "file")).removeprefix("input_").removesuffix("_url")
    sound = first("format") and f"{label}/{first('format')}"
    kind = first(*_KIND) or (is_url and head.removeprefix("data:")) or sound or media_type(data) or label
    return Media(kind, data, first(*_NAME) or address)


def without_base64(text: str) -> str:
    """The text with kind and size in the place of every long run of base64."""
    return _RUN.sub(_named, text) if _LONG.search(text) else text


def _named(run: re.Match[str]) -> str:
    kind, start = run[1] or media_type(run[2]), run[2][:_UNKNOWN]
    is_mixed = len(set(start)) >= 32 and all(re.search(c, start) for c in ("[a-z]", "[A-Z]", "[0-9]"))
    return Media(kind or "base64", run[2]).line if kind or (is_mixed and len(start) == _UNKNOWN) else run[0]


def media_type(data: str) -> str:
    """The media type of base64 by its first characters; "" for an unknown one."""
    return next((kind for begins, kind in _BEGINNINGS.items() if data.startswith(begins)), "")
