"""Images, files and audio in what tools returned: how a text names them, and their data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from memory_bank.transcript.jsontext import plain

_BASE64 = r"(?:[A-Za-z0-9+/_-]|\\/)"
# a long run of base64, or one of a known beginning or in a data URL; each is tried once for a run
_RUN = re.compile(rf"(?:data:([\w.+-]+/[\w.+-]+)[;\w=.-]*;base64,|(?<![\w+/-]))({_BASE64}{{200,}}+)={{0,2}}")
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)[;\w=.-]*;base64,", re.A)
_UNKNOWN = 1_024
"""Characters from which a run is taken to be data whose kind is not known: ids and cursors are shorter."""
_BEGINNINGS = {
    "iVBORw0KGg": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp",
    "JVBERi0": "application/pdf", "SUQz": "audio/mpeg", "T2dnUw": "audio/ogg", "UEsDB": "application/zip",
}  # fmt: skip
_BODIES = ("source", "file", "image_url", "input_audio", "resource", "inline_data")
_DATA = ("data", "base64", "file_data", "blob")
_URL = ("url", "image_url", "file_url", "uri")
_KIND = ("media_type", "mimeType", "mime_type")
_NAME = ("filename", "name", "title", "display_name")
_OTHER = (
    "type", "detail", "format", "file_id", "id", "source_type", "annotations", "_meta", "citations", "context",
    "description", "size", "extras", "metadata",
)  # fmt: skip
_KNOWN = frozenset({*_BODIES, *_DATA, *_URL, *_KIND, *_NAME, *_OTHER})


class Media(NamedTuple):
    """A part of an output that is not text: its media type or type, base64 data or a URL, and its name."""

    kind: str
    data: str = ""
    url: str = ""
    name: str = ""

    @property
    def line(self) -> str:
        """What a text says of it: ``[image/png, 84 kB, "chart.png"]``."""
        name = self.name or self.url
        told = (self.kind, _size(self.data), json.dumps(name[:200], ensure_ascii=False) if name else "")
        return f"[{', '.join(filter(None, told))}]"


def media_of(part: object) -> Media | None:
    """The image, file or audio that a content part of any API holds, or None."""
    if isinstance(part, str) or (isinstance(part, Mapping) and not part.keys() <= _KNOWN):
        return None
    part = plain(part)
    if not isinstance(part, dict):
        return None
    bodies = [part, *(part[k] for k in _BODIES if isinstance(part.get(k), Mapping))]

    def first(*keys: str) -> str:
        return next((b[k] for b in bodies for k in keys if isinstance(b.get(k), str) and b[k]), "")

    data, url, kind = first(*_DATA), first(*_URL), first(*_KIND)
    label = str(part.get("type") or "file").removeprefix("input_").removesuffix("_url")
    for given in (url, data):
        if found := _DATA_URL.match(given):
            kind, data, url = kind or found[1], given[found.end() :], "" if given is url else url
    if data and not re.match(rf"{_BASE64}+={{0,2}}\s*\Z", data[:200].rstrip("=")):
        return None
    if not (data or ("type" in part and (url or first("file_id")))):
        return None
    sound = first("format")
    kind = kind or (f"{label}/{sound}" if sound else _kind_of(data)) or label
    return Media(kind, data, url, first(*_NAME))


def media_in(value: object) -> Iterator[Media]:
    """The images, files and audio anywhere in an output's value, in order, that have data or an address."""
    pending = [value]
    while pending:
        node = pending.pop()
        media = media_of(node) if isinstance(node, Mapping) else None
        if media is not None and (media.data or media.url.startswith("http")):
            yield media
        elif isinstance(node, (Mapping, list, tuple)):
            pending.extend(reversed([*node.values()] if isinstance(node, Mapping) else node))


def without_base64(text: str) -> str:
    """The text with kind and size in the place of every long run of base64."""
    return _RUN.sub(_named, text)


def _named(run: re.Match[str]) -> str:
    kind = run[1] or _kind_of(run[2])
    if not kind and (len(run[2]) < _UNKNOWN or not _is_mixed(run[2][:_UNKNOWN])):
        return run[0]
    return Media(kind or "base64", run[2]).line


def _is_mixed(run: str) -> bool:
    """Whether a run has small and capital letters and digits, as base64 of anything long has."""
    return len(set(run)) >= 32 and all(re.search(c, run) for c in ("[a-z]", "[A-Z]", "[0-9]"))


def _kind_of(data: str) -> str:
    return next((kind for begins, kind in _BEGINNINGS.items() if data.startswith(begins)), "")


def _size(data: str) -> str:
    size = len(data) * 3 // 4
    for unit in ("bytes", "kB", "MB"):
        if size < 1_000 or unit == "MB":
            break
        size = round(size / 1_000)
    return f"{size:,} {unit}" if data else ""
