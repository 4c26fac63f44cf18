"""What all settings share: frozen, strict, and a wrong value told in one sentence."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from memory_bank.errors import ConfigError


def _no_truth_for_a_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no values for this setting")
    return value


Int = Annotated[int, BeforeValidator(_no_truth_for_a_number)]
Number = Annotated[int | float, BeforeValidator(_no_truth_for_a_number)]
Float = Annotated[float, BeforeValidator(_no_truth_for_a_number)]


class Settings(BaseModel):
    """Settings of one strategy."""

    type: str
    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise ConfigError(sentence(e, type(self))) from None


def hint(name: str, known: Any, otherwise: str, before: str = "", spell: Any = str) -> str:
    """The nearest known name as a question, else ``otherwise``."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {before}{spell(near[0])}?" if near else otherwise


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing that is wrong with some settings, as one sentence; of the value only its type."""
    first = error.errors(include_url=False, include_input=False)[0]
    loc = [str(p) for p in first["loc"]]
    place = f"{model.__name__}: {'.'.join(loc)}" if loc else model.__name__
    if first["type"] == "extra_forbidden":
        return f"{place} is no setting: {hint(loc[-1], model.model_fields, 'remove it.')}"
    return f"{place}: {message_of(first)}"


def message_of(first: Any) -> str:
    """Pydantic's message as the end of a sentence."""
    message = first["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}."
