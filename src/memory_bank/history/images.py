"""Images of a task: whatever a caller has, as a URL that providers take, checked to be an image."""

from __future__ import annotations

import base64
import binascii
import io
from pathlib import Path
from typing import Any

from memory_bank.errors import ImageError

_ADVICE = "give PNG, JPEG, GIF or WebP as bytes, a file, a PIL image, a data: or an https: URL."


def image_url(image: Any, what: str = "the image") -> str:
    """The URL of an image: ``http(s)://…`` as it is, all else as ``data:image/…;base64,…``.

    ``image`` is such a URL, bytes, a ``pathlib.Path``, or an object with ``save(file, format=)``
    as PIL's have. Only the first bytes are looked at. Raises ImageError for what is none of these.
    """
    if isinstance(image, str):
        if image.startswith(("http://", "https://")) and len(image.split("://", 1)[1].strip()) > 0:
            return image
        if image.startswith("data:"):
            _check_data(image, what)
            return image
        raise ImageError(f"{what} is a text that is no URL of an image: {_ADVICE}")
    if isinstance(image, Path):
        try:
            image = image.read_bytes()
        except OSError as e:
            raise ImageError(f"{what} cannot be read from {image} ({e.strerror}): {_ADVICE}") from e
    elif callable(getattr(image, "save", None)):
        file = io.BytesIO()
        try:
            image.save(file, format="PNG")
        except Exception as e:
            raise ImageError(f"{what} cannot be written as PNG ({type(e).__name__}): {_ADVICE}") from e
        image = file.getvalue()
    if not isinstance(image, (bytes, bytearray, memoryview)):
        raise ImageError(f"{what} is a {type(image).__name__}: {_ADVICE}")
    data = bytes(image)
    kind = _kind(data)
    if kind is None:
        raise ImageError(f"{what} is {len(data):,} bytes of no known image format: {_ADVICE}")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _check_data(url: str, what: str) -> None:
    head, _, body = url.partition(",")
    try:
        start = base64.b64decode(body[:64], validate=True) if head.endswith(";base64") else b""
        base64.b64decode(body[-64:] if len(body) % 4 == 0 else body, validate=True)
    except (binascii.Error, ValueError):
        start = b""
    if not head.startswith("data:image/") or (_kind(start) is None and not head.startswith("data:image/svg")):
        raise ImageError(f"{what} is a data: URL that holds no image: {_ADVICE}")


def _kind(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return None
