"""The values that steps are made of: JSON that cannot be changed, images as URLs, checked limits."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import datetime as dt
import io
import logging
import math
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, NoReturn, TypeGuard

from memory_bank.errors import HistoryError, ImageError
from memory_bank.transcript.jsontext import plain

Json = dict[str, Any]
"""A JSON object."""

NOT_KEPT = "_not_kept"
"""The key under which a value that is not JSON is named by its type."""
log = logging.getLogger("memory_bank.History")
_IMAGE_HELP = "give PNG, JPEG, GIF or WebP as bytes, a file, a PIL image, a data: or an https: URL."


def positive(value: object, name: str) -> int:
    """The limit ``value``. Raises HistoryError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise HistoryError(f"{name} is {value!r}: give a whole number of at least 1.")
    return value


def is_amount(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value >= 0


# JSON that cannot be changed


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("this value belongs to a history and cannot be changed: use copy.deepcopy to get a copy")


class FrozenDict(dict[str, Any]):
    """A dict that cannot be changed. It equals the plain dict; ``copy.deepcopy`` returns a plain dict."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))

    def __deepcopy__(self, memo: object) -> Json:
        return {k: thaw(v) for k, v in self.items()}

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[Json]]:
        return FrozenDict, (dict(self),)


class FrozenList(list[Any]):
    """A list that cannot be changed. It equals the plain list; ``copy.deepcopy`` returns a plain list."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(len(self))

    def __deepcopy__(self, memo: object) -> list[Any]:
        return [thaw(v) for v in self]

    def __reduce__(self) -> tuple[type[FrozenList], tuple[list[Any]]]:
        return FrozenList, (list(self),)


def freeze(value: object) -> Any:
    """A copy that cannot be changed: dicts and lists frozen, tuples and sets as lists, SDK objects as dicts.

    Dates, Decimals, UUIDs and paths become text; any other object becomes ``{"_not_kept": "module.Class"}``, and a
    warning names it. A value that nests too deep for recursion becomes its text.
    """
    try:
        return _freeze(value)
    except RecursionError:
        return _freeze(plain(value))


def _freeze(value: object) -> Any:
    if value is None or isinstance(value, (str, int, float, bool, FrozenDict, FrozenList)):
        return value
    if isinstance(value, Mapping):
        return FrozenDict((k if isinstance(k, str) else str(k), _freeze(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return FrozenList(_freeze(v) for v in value)
    return _freeze(as_json(value))


def as_json(value: object) -> Any:
    """What stands for an object that is no JSON value: see ``freeze``. What it holds is not looked at."""
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (dt.date, dt.time, Decimal, uuid.UUID, PurePath)):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name != "raw"}
    if callable(getattr(value, "model_dump", None)):
        return plain(value)
    name = type_name(value)
    log.warning("a %s is not JSON and is not kept in the history: only its type is", name)
    return {NOT_KEPT: name}


def type_name(value: object) -> str:
    """The type of a value with its module, such as ``pandas.core.frame.DataFrame``."""
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def thaw(value: object) -> Any:
    """A plain copy of a frozen value."""
    if isinstance(value, dict):
        return {k: thaw(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(v) for v in value]
    return value


# images


def image_url(image: object, what: str = "the image") -> str:
    """The URL of an image: ``http(s)://…`` unchanged, everything else as ``data:image/…;base64,…``.

    Args:
        image: a URL, bytes, a ``pathlib.Path``, or an object with ``save(file, format=)`` as PIL images have.
        what: how an error names the image.

    Raises:
        ImageError: the value is none of these. Only the first bytes are checked.
    """
    if isinstance(image, str):
        if image.startswith(("http://", "https://")) and image.split("://", 1)[1].strip():
            return image
        if image.startswith("data:"):
            _check_data_url(image, what)
            return image
        raise ImageError(f"{what} is a text that is not the URL of an image: {_IMAGE_HELP}")
    if isinstance(image, Path):
        try:
            image = image.read_bytes()
        except OSError as e:
            raise ImageError(f"{what} cannot be read from {e.filename} ({e.strerror}): {_IMAGE_HELP}") from e
    elif callable(save := getattr(image, "save", None)):
        file = io.BytesIO()
        try:
            save(file, format="PNG")
        except Exception as e:
            raise ImageError(f"{what} cannot be written as PNG ({type(e).__name__}): {_IMAGE_HELP}") from e
        image = file.getvalue()
    if not isinstance(image, (bytes, bytearray, memoryview)):
        raise ImageError(f"{what} is a {type(image).__name__}: {_IMAGE_HELP}")
    data = bytes(image)
    kind = _image_format(data)
    if kind is None:
        raise ImageError(f"{what} is {len(data):,} bytes of an unknown image format: {_IMAGE_HELP}")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _check_data_url(url: str, what: str) -> None:
    head, _, body = url.partition(",")
    try:
        start = base64.b64decode(body[:64], validate=True) if head.endswith(";base64") else b""
        base64.b64decode(body[-64:] if len(body) % 4 == 0 else body, validate=True)
    except (binascii.Error, ValueError):
        start = b""
    is_svg = head.startswith("data:image/svg")
    if not head.startswith("data:image/") or (_image_format(start) is None and not is_svg):
        raise ImageError(f"{what} is a data: URL without an image in it: {_IMAGE_HELP}")


def _image_format(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return None
