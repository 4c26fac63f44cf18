"""The values that steps are made of: checked fields, JSON that cannot be changed, images as URLs."""

from __future__ import annotations

import base64
import copy
import dataclasses
import datetime as dt
import functools
import io
import logging
import uuid
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Annotated, Any, NoReturn, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, Strict, ValidationError
from pydantic.dataclasses import dataclass

from memory_bank.errors import HistoryError, ImageError
from memory_bank.transcript.jsontext import plain
from memory_bank.transcript.media import media_type

log = logging.getLogger("memory_bank.History")
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def value(cls: type[T]) -> type[T]:
    """Make a class an immutable dataclass that checks its fields; a wrong one raises HistoryError."""
    made: Any = dataclass(frozen=True, repr=False, config=ConfigDict(extra="forbid"))(cls)
    names = [f.name for f in dataclasses.fields(made) if not f.kw_only]
    init = made.__init__

    @functools.wraps(init)
    def checked(self: object, *args: object, **fields: object) -> None:
        try:
            init(self, *args, **fields)
        except ValidationError as e:
            first = e.errors(include_url=False, include_input=False)[0]
            if isinstance(cause := first.get("ctx", {}).get("error"), HistoryError):
                raise cause from None
            head, *rest = first["loc"]  # a number for an argument without a name
            place = ".".join(map(str, (names[head] if isinstance(head, int) else head, *rest)))
            message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
            raise HistoryError(f"{cls.__name__}.{place}: {message}.") from None

    made.__init__ = checked
    return made  # type: ignore[no-any-return]


def positive(limit: object, name: str) -> int:
    """The limit. Raises HistoryError unless it is a whole number of at least 1."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise HistoryError(f"{name} is {limit!r}: give a whole number of at least 1.")
    return limit


# JSON that cannot be changed


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TypeError("this value belongs to a history and cannot be changed: use copy.deepcopy to get a copy")


class _ReadOnly:
    """A dict or list that cannot be changed. It equals the plain one, of which ``copy.deepcopy`` makes a copy."""

    __slots__ = ()
    plain: Any  # the type that it stands for
    __setitem__ = __delitem__ = __ior__ = __iadd__ = __imul__ = clear = pop = _refuse
    popitem = setdefault = update = append = extend = insert = remove = reverse = sort = _refuse

    def __hash__(self) -> int:
        return hash(len(self))  # type: ignore[arg-type]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.plain(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.plain(self),)


class FrozenDict(_ReadOnly, dict[str, Any]):  # type: ignore[misc]
    """A dict that cannot be changed."""

    __slots__ = ()
    plain = dict


class FrozenList(_ReadOnly, list[Any]):  # type: ignore[misc]
    """A list that cannot be changed."""

    __slots__ = ()
    plain = list


def freeze(given: object) -> Any:
    """A copy as JSON that cannot be changed: tuples and sets as lists, SDK objects as dicts, images as URLs.

    Dates, Decimals, UUIDs and paths become text; any other object becomes ``{"_not_kept": "module.Class"}``, and a
    warning names it. A value that nests too deep for recursion becomes its text.
    """
    try:
        return _frozen(given)
    except RecursionError:
        return _frozen(plain(given))


def _frozen(given: object) -> Any:
    if given is None or isinstance(given, (bool, int, float, FrozenDict, FrozenList)):
        return given
    if isinstance(given, str):
        return str.__str__(given)  # also of an enum
    if isinstance(given, Mapping):
        return FrozenDict((k if isinstance(k, str) else str(k), _frozen(v)) for k, v in given.items())
    if isinstance(given, (list, tuple, set, frozenset)):
        return FrozenList(map(_frozen, given))
    if isinstance(given, (dt.date, dt.time, Decimal, uuid.UUID, PurePath)):
        return str(given)
    if dataclasses.is_dataclass(given) and not isinstance(given, type):
        return _frozen({f.name: getattr(given, f.name) for f in dataclasses.fields(given) if f.name != "raw"})
    if callable(getattr(given, "model_dump", None)):
        return _frozen(plain(given))
    if callable(getattr(given, "save", None)) and hasattr(given, "size"):
        return _frozen({"type": "image_url", "image_url": {"url": image_url(given)}})
    log.warning("a %s is not JSON and is not kept in the history: only its type is", type_name(given))
    return FrozenDict({"_not_kept": type_name(given)})


def type_name(given: object) -> str:
    """The type of a value with its module, such as ``pandas.core.frame.DataFrame``."""
    return f"{type(given).__module__}.{type(given).__qualname__}".removeprefix("builtins.")


def image_url(image: object, what: str = "the image") -> str:
    """The URL of an image: ``http(s)://…`` unchanged, everything else as ``data:image/…;base64,…``.

    ``image``: a URL, bytes, a ``pathlib.Path``, or an object with ``save(file, format=)`` as PIL images have.
    ``what`` names it in an error. Raises ImageError for anything else; only the first bytes are checked.
    """
    advice = "give PNG, JPEG, GIF or WebP as bytes, a file, a PIL image, a data: or an https: URL."
    if isinstance(image, str):
        scheme, _, rest = image.partition(":")
        head, _, body = rest.partition(",")
        is_known = head.endswith(";base64") and media_type(body).startswith("image/")
        if scheme in ("http", "https") and rest.startswith("//") and rest[2:].strip():
            return image
        if scheme == "data" and head.startswith("image/") and (is_known or head.startswith("image/svg")):
            return image
        raise ImageError(f"{what} is a text that is not the URL of an image: {advice}")
    try:
        if isinstance(image, Path):
            image = image.read_bytes()
        elif callable(save := getattr(image, "save", None)):
            file = io.BytesIO()
            save(file, format="PNG")
            image = file.getvalue()
    except Exception as e:  # a foreign object may raise anything
        raise ImageError(f"{what} cannot be read ({type(e).__name__}): {advice}") from e
    if not isinstance(image, (bytes, bytearray, memoryview)):
        raise ImageError(f"{what} is a {type(image).__name__}: {advice}")
    encoded = base64.b64encode(image).decode("ascii")
    kind = media_type(encoded)
    if not kind.startswith("image/"):
        raise ImageError(f"{what} is {len(bytes(image)):,} bytes of an unknown image format: {advice}")
    return f"data:{kind};base64,{encoded}"


# the types of fields


def _listed(given: object) -> tuple[object, ...]:
    """A tuple of a list; of one for a single value, an empty one for None."""
    if isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping)):
        return tuple(given)
    return () if given is None else (given,)


Text = Annotated[str, Strict()]
Flag = Annotated[bool, Strict()]
Whole = Annotated[int, Strict(), Field(ge=0)]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Frozen = Annotated[Any, BeforeValidator(freeze)]
LISTED = BeforeValidator(_listed)
