"""The configuration: settings of every strategy and of the service, read from a file and the environment.

Each setting is written here once, with its default and what it does; `memory-bank config --all` prints them. Settings
are frozen and typed; unknown names are refused.
"""

from __future__ import annotations

import ast
import difflib
import json
import logging
import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import to_jsonable_python

from memory_bank.errors import ConfigError, UnknownStrategyError
from memory_bank.prompts import load_prompt
from memory_bank.records import brief

log = logging.getLogger("memory_bank.MemoryBankStrategy")

ENV_PREFIX = "MEMORY_BANK_"
FAULT = "MEMORY_BANK_FAULT"  # no setting: see memory_bank.faults
EXTRACTIVE = "extractive"
OPENAI = "https://api.openai.com/v1"
ANTHROPIC = "https://api.anthropic.com"


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no values for this setting")
    return value


Int = Annotated[int, BeforeValidator(_no_boolean)]
Float = Annotated[float, BeforeValidator(_no_boolean)]
AtLeast0 = Annotated[Int, Field(ge=0)]
AtLeast1 = Annotated[Int, Field(ge=1)]
Share = Annotated[Float, Field(ge=0, le=1)]
Seconds = Annotated[Float, Field(gt=0, le=3600)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]


class Needs(NamedTuple):
    """Settings that have an effect only where another one has (or ``is_not``) a value."""

    names: tuple[str, ...]
    other: str
    value: str
    is_not: bool = False


class Settings(BaseModel):
    """Frozen values. Raises ConfigError, with a sentence for each mistake.

    ``needs`` says which have no effect under which others; a warning names those that are set nevertheless.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    needs: ClassVar[tuple[Needs, ...]] = ()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as e:
            raise ConfigError(*_mistakes(e, type(self), values)) from None

    def __repr__(self) -> str:
        values = {name: value for name, value in self if name in self.model_fields_set}
        return brief(self, values)

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # values within a table: all mistakes at once

    @model_validator(mode="after")
    def _warn_of_idle(self) -> Self:
        shipped = SHIPPED["memory_bank"] if self.needs else {}
        is_shipped = self.model_fields_set >= shipped.keys()
        is_dump = (
            self.model_fields_set >= type(self).model_fields.keys()
        )  # every setting, written by no person
        for name, needs in self.idle():
            value, usual = getattr(self, name), type(self).model_fields[name].default
            fits = value == "off" or (is_dump and value == usual)
            fits |= name in shipped and (value == usual or (is_shipped and value == shipped[name]))
            if name in self.model_fields_set and not fits:
                mends = f"another {needs.other}" if needs.is_not else f'{needs.other} = "{needs.value}"'
                sentence = f'{name} has no effect with {needs.other} = "{getattr(self, needs.other)}"'
                _warn(f"{sentence}: set {mends}, or remove {name}")
        return self

    def idle(self) -> Iterator[tuple[str, Needs]]:
        """The settings that have no effect under the others, and what they need."""
        for needs in self.needs:
            if (getattr(self, needs.other) == needs.value) is needs.is_not:
                yield from ((name, needs) for name in needs.names)


@cache
def _meanings() -> dict[tuple[str, str], str]:
    """The description of each setting, by its class and name: the string below it in this module."""
    return {
        (c.name, setting.target.id): str(below.value.value)
        for c in ast.parse(Path(__file__).read_text(encoding="utf-8")).body
        if isinstance(c, ast.ClassDef)
        for setting, below in pairwise(c.body)
        if isinstance(setting, ast.AnnAssign) and isinstance(setting.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def meaning(model: type, name: str) -> str:
    """The sentence that says what a setting of a class does; "" for none."""
    return next((text for c in model.__mro__ if (text := _meanings().get((c.__name__, name)))), "")


def hint(name: str, names: Iterable[str], otherwise: str, spell: Any = str) -> str:
    """The nearest known name as a question, else ``otherwise``."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {spell(near[0])}?" if near else otherwise


def message_of(error: Any) -> str:
    """Pydantic's message as the end of a sentence."""
    message = error["msg"].removeprefix("Value error, ")
    return f"{message[0].lower()}{message[1:]}."


def _mistakes(error: ValidationError, model: type[BaseModel], values: Mapping[str, Any]) -> Iterator[str]:
    """Each mistake in values for ``model`` as one sentence, which names its place but not the value."""
    strategies = values.get("memory_strategies")
    keys = strategies if isinstance(strategies, Mapping) else {}
    complaints: dict[str, list[str]] = {}  # a value that is none of several types is one mistake
    for each in error.errors(include_url=False, include_input=False):
        loc = [str(p) for p in each["loc"] if not re.search(r"\[|^(int|float|bool)$", str(p))]
        names: Iterable[str] = model.model_fields
        if len(loc) > 1:
            names = {name for table in Settings.__subclasses__() for name in table.model_fields}
        if loc[:1] == ["memory_strategies"] and len(loc) > 2 and loc[2] in _MODELS:
            of = _MODELS[loc.pop(2)]  # the type of the strategy, which pydantic puts between
            names = of.model_fields if len(loc) == 3 else names
        elif loc[:1] == ["service"]:
            names = ServiceSettings.model_fields
        place = (
            _place(loc)
            if model is Config
            else ": ".join([model.__name__, ".".join(loc)] if loc else [model.__name__])
        )
        complaints.setdefault(place, []).append(_complaint(each, loc, names, keys))
    for place, texts in complaints.items():
        yield place + ", or".join([*(t.rstrip(".") for t in texts[:-1]), texts[-1]])


def _complaint(each: Any, loc: list[str], names: Iterable[str], keys: Iterable[str]) -> str:
    types = f"its type must be one of {', '.join(STRATEGY_TYPES)}"
    variable = _variable(loc) or ""
    if variable and (meant := _meant_variable(variable.upper(), keys)) not in ("", variable.upper()):
        return f" is no setting: did you mean {meant}?"
    if each["type"] == "extra_forbidden":
        if names is Config.model_fields and loc[0] in MemoryBankSettings.model_fields:
            return " is no setting: it belongs to a strategy, under [memory_strategies.<key>]."
        return f" is no setting: {hint(loc[-1], names, 'remove it.')}"
    if each["type"] == "union_tag_invalid":
        near = hint(str(each["ctx"]["tag"]), STRATEGY_TYPES, "")
        return f": {types}; {near}" if near else f": {types}."
    if each["type"] == "union_tag_not_found":
        near = hint(loc[-1], [k for k in keys if k != loc[-1]], f"{types}.")
        return f": there is no strategy {loc[-1]!r} to change: {near}"
    return f": {message_of(each)}"


class Price(Settings):
    """Price of a model for a million tokens, in any one currency."""

    prompt: Amount
    """Price of a million input tokens."""
    completion: Amount
    """Price of a million output tokens."""
    cached: Amount | None = None
    """Price of a million input tokens that are read from the prefix cache. Default: ``prompt``."""
    cache_write: Amount | None = None
    """Price of a million input tokens that are written to the prefix cache. Default: ``prompt``."""


class ToolSettings(Settings):
    """Facts about a tool: whether its calls change something, and when its outputs are shown in part."""

    effect: Literal["read", "write"] | None = None
    first_sight: AtLeast0 | None = None
    """As the strategy's ``first_sight``, for this tool; 0: its outputs are shown as they came."""


class NoStrategySettings(Settings):
    """The full history: the baseline of every comparison."""

    type: Literal["no_strategy"] = "no_strategy"


class TruncationSettings(Settings):
    """System and user messages, and the last interaction."""

    type: Literal["truncation"] = "truncation"


class KeepLastSettings(Settings):
    """System and user messages, and the last ``n`` interactions."""

    type: Literal["keep_last_n"] = "keep_last_n"
    n: AtLeast1 = 5
    """Interactions to keep, the last one included."""


CLASSIC = ("top_k", "max_chars_per_record", "retrieval_query", "fixed_query")
"""The settings of the selection "top_k": a table that sets one and no selection is that of the classic bank."""
_OF_EVIDENCE = (
    "history_budget", "refresh_after", "fold", "cache_retention", "layout", "fold_note", "keep_recent",
    "first_sight", "first_sight_tokens", "evidence_model",
)  # fmt: skip
_OF_OBSERVER = (
    "observer_mode", "observer_prompt", "observer_min_chars", "observer_max_chars", "observer_concurrency",
    "observer_timeout", "observer_attempts", "observer_calls_per_day", "fold_note",
)  # fmt: skip


class MemoryBankSettings(Settings):
    """The memory bank, with the documented defaults: the most similar records, summarised by a language model.

    Example:
        >>> MemoryBankSettings(observer_model="extractive", embedding_model="lexical", top_k=5).top_k
        5
    """

    needs: ClassVar[tuple[Needs, ...]] = (
        Needs(CLASSIC, "selection", "top_k"),
        Needs(_OF_EVIDENCE, "selection", "evidence"),
        Needs(("fixed_query",), "retrieval_query", "fixed"),
        Needs(_OF_OBSERVER, "observer_model", EXTRACTIVE, is_not=True),
        Needs(("observer_attempts",), "observer_mode", "background"),
    )

    type: Literal["memory_bank"] = "memory_bank"
    selection: Literal["top_k", "evidence"] = "top_k"
    """What a context shows of the past: whole records by similarity, or the values that the next calls may need."""
    history_budget: Literal["auto"] | Annotated[int | float, BeforeValidator(_no_boolean), Field(ge=0)] = (
        "auto"
    )
    """Evidence: tokens of a fold, or a share of the older history (0.25); auto: what the price bound allows."""
    refresh_after: Literal["auto"] | AtLeast0 = "auto"
    """Evidence: tokens of new interactions before the next fold; auto: where a step costs least; 0: at every step."""
    fold: Literal["careful", "thrifty"] = "careful"
    """Evidence, both of these on auto: wait for 20,000 tokens and fold to 5,000 at least, or for 16,000 and 3,000."""
    cache_retention: Annotated[Float, Field(gt=0)] = 300.0
    """Evidence: seconds after which the provider has forgotten a prefix, so that a fold costs nothing more."""
    layout: Literal["native", "block"] = "native"
    """Evidence: past calls in their places with shortened results, or one message with excerpts."""
    fold_note: Literal["off", "observer"] = "off"
    """Evidence: at each fold the Observer's model notes, in the background, what was decided, tried, left to do."""
    keep_recent: AtLeast0 = 2
    """Evidence: interactions before the last that a fold keeps whole, within a fifth of the budget."""
    first_sight: AtLeast0 = 16_000
    """Evidence: of outputs with more characters a part is shown from the first; 0: all are shown as they came."""
    first_sight_tokens: Annotated[Int, Field(ge=500)] = 4_000
    """Evidence: tokens of that part."""
    tools: dict[str, ToolSettings] = {}
    """Evidence, by tool: whether its calls change something (effect)."""
    evidence_model: str | None = None
    """Evidence: another model file, as `python -m benchmarks train` writes it."""
    top_k: AtLeast0 = 3
    """Past records to retrieve."""
    max_chars_per_record: AtLeast0 = 2000
    """Characters of raw data that are shown of each retrieved record."""
    retrieval_query: Literal["fixed", "task", "adaptive"] = "fixed"
    """What is searched for: a fixed sentence, the user's task, or the task and the latest steps."""
    fixed_query: Name = "how to proceed with the task"
    """The sentence of retrieval_query "fixed"."""
    scope: Literal["auto", "session", "project", "all"] = "auto"
    """Records that memory's tools search: of the session, its project, or all; auto: its project if they say so."""
    memory_role: Literal["user", "system", "developer", "assistant"] = "user"
    """Role of the text with retrieved records; "user" joins the user's message and has the least authority."""
    on_storage_error: Literal["raise", "pass_through"] = "raise"
    """When the database fails: raise, or return the messages unchanged with a warning."""
    embedding_model: Name = "BAAI/bge-small-en-v1.5"
    """A FlagEmbedding model or a local folder; "openai:NAME": an embeddings endpoint; "lexical" needs no weights."""
    observer_model: Name = "gpt-4.1-mini"
    """The model that summarises each call; "extractive" needs none."""
    observer_mode: Literal["inline", "background", "off"] = "inline"
    """When a model summarises: within the step, while the agent's own model call runs, or never."""
    observer_prompt: str | None = None
    """Another prompt file: as prompts/observer.prompt.md, or one text without placeholders, the system prompt."""
    observer_min_chars: AtLeast0 = 0
    """Outputs with fewer characters are summarised by extraction and never sent to the model."""
    observer_max_chars: Annotated[Int, Field(ge=200)] = 10_000
    """Characters of an output that the model reads."""
    observer_concurrency: Annotated[Int, Field(ge=1, le=64)] = 8
    """Calls of the model that run at once in a step."""
    observer_timeout: Seconds = 60.0
    """Seconds after which a call of the model is given up."""
    observer_attempts: Annotated[Int, Field(ge=1, le=100)] = 5
    """In the background: attempts before the extractive summary is kept."""
    observer_calls_per_day: AtLeast0 | None = None
    """Most calls of the Observer's model on a day (UTC), of the whole bank; beyond it summaries are extractive."""
    token_encoding: Name = "o200k_base"
    """The tiktoken encoding that counts; "approximate" needs no vocabulary."""

    @field_validator("history_budget")
    @classmethod
    def _check_share(cls, value: int | float | str) -> int | float | str:
        if isinstance(value, float) and value > 1:
            raise ValueError(
                "a fraction is a share of the history, at most 1.0; give tokens as a whole number"
            )
        return value


class StoredSettings(Settings):
    """A strategy that stores all records in a bank, so that ``get_record`` returns what a context leaves out."""

    embedding_model: Name = "lexical"
    """Embedding model of the search; "lexical" needs no weights."""
    token_encoding: Name = "o200k_base"
    """The tiktoken encoding that counts; "approximate" needs no vocabulary."""

    def bank(self) -> MemoryBankSettings:
        """The settings by which records are stored."""
        return MemoryBankSettings(
            observer_model=EXTRACTIVE,
            embedding_model=self.embedding_model,
            token_encoding=self.token_encoding,
        )


class MaskingSettings(StoredSettings):
    """All messages; older tool outputs cut to their beginning and their trace_id."""

    type: Literal["observation_masking"] = "observation_masking"
    keep_last: AtLeast1 = 3
    """Last interactions whose outputs stay whole."""
    max_length: AtLeast0 = 100
    """Characters kept of an older output."""


class ProgressiveSettings(StoredSettings):
    """Old interactions go into a running summary."""

    type: Literal["progressive_summarization"] = "progressive_summarization"
    compact_threshold: AtLeast1 = 8000
    """Tokens at which a context is compacted; the summary stays the same until it has grown to them again."""
    keep_last: AtLeast1 = 3
    """Interactions to keep whole if they fit, the last one included."""
    summary_tokens: AtLeast1 = 1500
    """Most tokens of the running summary."""
    summary_model: Name = EXTRACTIVE
    """The model that writes the summary; "extractive" needs none."""


class ServiceSettings(Settings):
    """The HTTP service: where it listens, what it forwards to, what it keeps and allows."""

    needs: ClassVar[tuple[Needs, ...]] = (Needs(("compaction_tokens",), "compaction", "pass", is_not=True),)

    host: Name = "127.0.0.1"
    """Address to listen on; only loopback addresses unless there are API keys (`memory-bank keys create`)."""
    port: Annotated[Int, Field(ge=0, le=65535)] = 8767
    """Port to listen on; 0: a free port."""
    workers: Annotated[Int, Field(ge=1, le=64)] = 1
    """Number of server processes."""
    database: str = ""
    """A file, sqlite:///FILE or postgresql://USER@HOST/DATABASE; empty: bank.db in the user's data directory."""
    upstream: str = ""
    """Base URL of the OpenAI-compatible API to which requests are sent; empty: OPENAI_BASE_URL, else OpenAI's."""
    upstream_anthropic: str = ""
    """Base URL of Anthropic's Messages API; empty: ANTHROPIC_BASE_URL, else Anthropic's."""
    upstream_timeout: Annotated[Float, Field(gt=0, le=86_400)] = 600.0
    """Seconds without a byte from the upstream after which a request is given up."""
    strategy: str = ""
    """Key of the strategy that rebuilds contexts; empty: default_strategy."""
    memory_timeout: Annotated[Float, Field(gt=0, le=600)] = 5.0
    """Seconds after which a request is sent unchanged, if memory is not ready; a response header says so."""
    holdout: Share = 0.0
    """Share of sessions that are sent without memory, as a control with which the page compares the others."""
    inject_tools: bool | Literal["auto"] = "auto"
    """Offer the memory tools to the agent and answer their calls; auto: if they are few beside its own."""
    compaction: Literal["assist", "answer", "pass"] = "assist"
    """A client's request for a summary: upstream's with what memory knows besides, memory's alone, or untouched."""
    compaction_tokens: Annotated[Int, Field(ge=200, le=100_000)] = 4000
    """Most tokens of what memory adds to a summary, or answers in its place."""
    memory_files: bool = False
    """Offer over MCP, beside the memory tools, files below /memories that outlive a session, by project."""
    cache_markers: Literal["auto", "off"] = "auto"
    """Messages API: add marks for the prefix cache (cache_control) to requests that have none."""
    context_management: Literal["auto", "pass", "remove"] = "auto"
    """Send context_management upstream, or take it out; auto: sent, on the Messages API to Anthropic's own only."""
    redact: tuple[str, ...] = ()
    """Regular expressions; text that matches is never stored."""
    redact_secrets: bool = True
    """API keys, tokens, private keys and passwords in URLs are never stored."""
    max_body_bytes: Annotated[Int, Field(ge=1024)] = 64 * 2**20
    """Longest request body accepted."""
    requests_per_minute: AtLeast0 = 0
    """Requests a minute of one API key, or of all clients without keys; 0: no limit."""
    sessions_kept: AtLeast1 = 256
    """Most sessions that a worker keeps in memory; others are read from the database when they go on."""
    tokens_kept: AtLeast1 = 4_000_000
    """Most tokens of history that a worker keeps in memory, about 200 bytes each; 64 bytes of a request are one."""
    steps_kept: AtLeast0 = 100
    """Latest steps of a session whose answers are kept for the page; figures and what contexts showed stay."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names accepted besides the service's address and loopback."""
    log_format: Literal["text", "json"] = "text"
    """Format of the log."""
    shutdown_timeout: Annotated[Float, Field(ge=0, le=600)] = 10.0
    """Seconds that open requests and calls of the Observer have at shutdown; records that are left go on waiting."""

    @field_validator("redact")
    @classmethod
    def _expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for expression in value:
            try:
                re.compile(expression)
            except re.error as e:
                raise ValueError(f"{expression!r} is no regular expression ({e})") from None
        return value


def upstreams_of(settings: ServiceSettings) -> dict[Literal["openai", "anthropic"], str]:
    """The base URLs of upstreams without a trailing slash; Anthropic's ends with ``/v1``. Raises ConfigError."""
    openai = _base_url(settings.upstream, "OPENAI_BASE_URL", OPENAI, "the upstream", "--upstream")
    subject, option = "the upstream of the Messages API", "--upstream-anthropic"
    anthropic = _base_url(settings.upstream_anthropic, "ANTHROPIC_BASE_URL", ANTHROPIC, subject, option)
    return {"openai": openai, "anthropic": f"{anthropic.removesuffix('/v1')}/v1"}


def _base_url(setting: str, variable: str, default: str, subject: str, option: str) -> str:
    url = (setting or os.environ.get(variable) or default).strip().rstrip("/")
    parts = urlsplit(url) if is_url(url) else None
    if parts is None or parts.query or parts.fragment or parts.username is not None:
        where = f"check {option} or {variable} (it must not contain a key)"
        raise ConfigError(f"{subject} is no URL such as {default}: {where}.")
    return url


def is_url(text: str) -> bool:
    """Return whether a text is the URL of a server that HTTP reaches."""
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, half a bracket
        return False
    return fits and text.isprintable()


AnyStrategy = (
    NoStrategySettings | TruncationSettings | KeepLastSettings | MaskingSettings | ProgressiveSettings
    | MemoryBankSettings
)  # fmt: skip
_MODELS: dict[str, type[AnyStrategy]] = {m.model_fields["type"].default: m for m in AnyStrategy.__args__}
STRATEGY_TYPES = tuple(_MODELS)
_LOCAL: dict[str, Any] = {"type": "memory_bank", "observer_model": EXTRACTIVE, "embedding_model": "lexical"}
SHIPPED: dict[str, dict[str, Any]] = {
    "memory_bank": _LOCAL
    | {"selection": "evidence", "observer_mode": "background", "observer_min_chars": 200},
    "memory_bank_classic": {"type": "memory_bank"},
    "memory_bank_local": _LOCAL | {"retrieval_query": "adaptive"},
} | {name: {"type": name} for name in STRATEGY_TYPES if name != "memory_bank"}
"""The strategies of ``load_config()``: the memory bank, the classic one with and without a model, all other types."""


class Config(Settings):
    """A configuration of the values that are passed in, with the defaults of the code for all others.

    ``load_config`` begins with the shipped strategies instead. Environment variables override both:
    ``MEMORY_BANK_MEMORY_STRATEGIES__memory_bank__TOP_K=5`` sets one value. Raises ConfigError: an unknown
    key, a wrong value, in the arguments or in the environment.

    Example:
        >>> Config(memory_strategies={"short": {"type": "keep_last_n", "n": 3}}).strategy("short").n
        3
    """

    default_strategy: Name = "memory_bank"
    """Key of the strategy that is used when none is named."""
    loop_detection: Literal["off", "warn", "raise"] = "warn"
    """When an agent repeats a call with the same answer: nothing, a line in the log, or LoopDetectedError."""
    loop_threshold: Annotated[Int, Field(ge=2)] = 3
    """Equal calls with equal answers in a row that count as a loop."""
    prices: dict[str, Price] = {}
    """Price of a million tokens by the beginning of a model's name, for the page, the API and traces."""
    memory_strategies: dict[str, Annotated[AnyStrategy, Field(discriminator="type")]] = {
        "memory_bank": MemoryBankSettings()
    }
    """The strategies by key."""
    service: ServiceSettings = ServiceSettings()
    """Settings of `memory-bank serve`."""

    def __init__(self, **values: Any) -> None:
        values = {"memory_strategies": {"memory_bank": {"type": "memory_bank"}}, **values}
        tables = values["memory_strategies"]
        super().__init__(**_laid_over(values, _environment(tables if isinstance(tables, Mapping) else ())))
        for key, settings in self.memory_strategies.items():
            place = ["memory_strategies", key]
            for name in ("evidence_model", "observer_prompt"):
                file = getattr(settings, name, None)
                if file is not None and not Path(file).is_file():
                    wrong = f"there is no file {file}: correct the path, or remove it."
                    raise ConfigError(f"{_place([*place, name])}: {wrong}")
                if file is not None and name == "observer_prompt":
                    load_prompt("observer", file)

    def strategy(self, key: str) -> AnyStrategy:
        """The settings under a key. Raises UnknownStrategyError, which names the nearest known key."""
        if key not in self.memory_strategies:
            raise UnknownStrategyError(_unknown(key, self.memory_strategies))
        return self.memory_strategies[key]


def _unknown(key: object, strategies: Iterable[str]) -> str:
    names = sorted(strategies)
    nearest = hint(str(key), names, f"it has {', '.join(names) or 'none'}.", repr)
    return f"the configuration has no strategy {key!r}: {nearest}"


_LEVELS = {"service": 1, "memory_strategies": 2}
"""Tables of the configuration that are changed value by value, and how deep; anything else is replaced."""


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``below``, changed setting by setting by ``above``; a strategy of another type is replaced as a whole."""
    return {**below, **{k: _changed(below.get(k), v, _LEVELS.get(k, 0)) for k, v in above.items()}}


def _changed(below: Any, above: Any, levels: float) -> Any:
    if isinstance(below, BaseModel):
        below = {k: v for k, v in below if k in below.model_fields_set or k == "type"}
    if not (levels and isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    if levels == 1 and above.get("type", below.get("type")) != below.get("type"):
        return above
    return {**below, **{k: _changed(below.get(k), v, levels - 1) for k, v in above.items()}}


def _variables() -> dict[str, tuple[list[str], Any]]:
    """Place, in lower case, and value of the environment variables that are settings, tables before their members."""
    settings: dict[str, tuple[list[str], Any]] = {}
    for variable, text in sorted(os.environ.items()):
        if text and variable.upper().startswith(ENV_PREFIX) and variable != FAULT:
            place = variable[len(ENV_PREFIX) :].lower().split("__")
            try:
                settings[variable] = place, json.loads(text) if text[0] in "[{" else text
            except (ValueError, RecursionError) as e:
                raise ConfigError(
                    f"the environment variable {variable}: its value is no JSON ({e})."
                ) from None
    return settings


def _environment(strategies: Iterable[str]) -> dict[str, Any]:
    """The settings in the environment; keys of strategies, in any case, are spelled as the given ones."""
    values: Any = {}
    for place, value in _variables().values():
        for name in reversed(place):
            value = {name: value}
        values = _changed(values, value, math.inf)
    if isinstance(named := values.get("memory_strategies"), Mapping):
        spelled = {str(k).lower(): k for k in strategies}
        values["memory_strategies"] = {spelled.get(k.lower(), k): v for k, v in named.items()}
    return dict(values)


def has(values: Any, loc: Sequence[str]) -> bool:
    """Return whether a configuration sets the value at a place."""
    return not loc or (isinstance(values, Mapping) and loc[0] in values and has(values[loc[0]], loc[1:]))


def _variable(loc: Sequence[str]) -> str | None:
    """The environment variable that sets the value at a place of the configuration, if there is one."""
    wanted = [part.lower() for part in loc]
    for variable, (place, value) in reversed(_variables().items()):
        common = min(len(place), len(loc))
        if place[:common] == wanted[:common] and has(value, loc[common:]):
            return variable
    return None


def _meant_variable(variable: str, keys: Iterable[str]) -> str:
    """The variable of a setting that one with underscores in other places means (``…_SERVICE_PORT``); "" for none."""
    places: list[tuple[str, ...]] = [("service", field) for field in ServiceSettings.model_fields]
    places += [
        ("memory_strategies", k, f) for k in {*SHIPPED, *keys} for f in MemoryBankSettings.model_fields
    ]
    names = {ENV_PREFIX + "_".join(place).upper(): place for place in places}
    names |= {ENV_PREFIX + field.upper(): ("service", field) for field in ServiceSettings.model_fields}
    place = names.get(variable.replace("__", "_"))
    return "" if place is None else f"{ENV_PREFIX}{'__'.join(place).upper()}"


def _place(loc: Sequence[str]) -> str:
    """How an error names a place of the configuration; ``Config`` stands for the file, if there is one."""
    variable = _variable(loc)
    return f"the environment variable {variable}" if variable else f"Config: {'.'.join(loc)}"


def read_toml(file: str | Path | None, kind: str = "configuration") -> dict[str, Any]:
    """The values of a TOML file; none without a file. Raises ConfigError."""
    try:
        return {} if file is None else tomllib.loads(Path(file).read_text(encoding="utf-8-sig"))
    except OSError as e:
        wrong = f"cannot be read ({e.strerror or e}): give the path of a TOML file."
        raise ConfigError(f"the {kind} {file} {wrong}") from e
    except (ValueError, RecursionError) as e:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"the {kind} {file} is no TOML: {e}; correct it there.") from e


def load_config(path: str | Path | None = None) -> Config:
    """The shipped configuration, changed by a file, then by the environment, setting by setting.

    Raises ConfigError, whose ``mistakes`` are all of the file's: a missing file, no TOML, an unknown key, a wrong
    value; UnknownStrategyError for a ``default_strategy`` or ``service.strategy`` that does not exist.

    Example:
        >>> load_config().strategy("memory_bank").selection
        'evidence'
    """
    try:
        file = read_toml(path)
        config = Config(**_laid_over({"memory_strategies": _shipped_below(file)}, file))
        named = {
            ("default_strategy",): config.default_strategy,
            ("service", "strategy"): config.service.strategy,
        }
        for loc, key in named.items():
            if key and key not in config.memory_strategies:
                raise UnknownStrategyError(f"{_place(loc)}: {_unknown(key, config.memory_strategies)}")
    except ConfigError as e:
        where = f"{path or 'the shipped configuration'}: "
        raise type(e)(*(m.replace("Config: ", where, 1) for m in e.mistakes)) from None
    return config


def _shipped_below(file: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The shipped strategies; one that is changed by a setting of the selection "top_k" has that selection."""
    changed = _laid_over(file, _environment({*SHIPPED, *_tables(file)}))
    shipped = dict(SHIPPED)
    for key, table in _tables(changed).items():
        is_classic = isinstance(table, Mapping) and "selection" not in table and table.keys() & {*CLASSIC}
        if is_classic and shipped.get(key, {}).get("selection") == "evidence":
            shipped[key] = _LOCAL
    return shipped


def _tables(values: Mapping[str, Any]) -> Mapping[str, Any]:
    tables = values.get("memory_strategies")
    return tables if isinstance(tables, Mapping) else {}


class Setting(NamedTuple):
    """A setting: its path, its value, the file or variable that set it ("": default), what it does.

    ``is_idle``: it has no effect under the others.
    """

    place: tuple[str, ...]
    value: Any
    source: str
    meaning: str
    is_idle: bool


def effective_settings(path: str | Path | None = None) -> Iterator[Setting]:
    """All settings of ``load_config(path)``, which raises what is wrong."""
    file = read_toml(path)

    def settings(loc: tuple[str, ...], value: Any, about: str, is_idle: bool) -> Iterator[Setting]:
        if len(loc) <= _LEVELS.get((*loc, "")[0], 0):
            idle = {n for n, _ in value.idle()} if isinstance(value, Settings) else set()
            idle -= SHIPPED["memory_bank"].keys()
            for name, member in dict(value).items():
                yield from settings((*loc, name), member, meaning(type(value), name), name in idle)
        else:
            source = _variable(loc) or (str(path) if has(file, loc) else "")
            yield Setting(loc, to_jsonable_python(value, exclude_none=True), source, about, is_idle)

    return settings((), load_config(path), "", False)


def as_settings(settings: Any) -> MemoryBankSettings:
    """MemoryBankSettings from themselves, None (defaults), a dict of them, or an object with such attributes.

    Keys of a dict that are settings of other strategies have no effect, and a warning says so; unknown ones are
    refused. Attributes with their default value are not taken for set. Raises ConfigError.
    """
    if isinstance(settings, MemoryBankSettings):
        return settings
    if isinstance(settings, Settings):
        name = type(settings).__name__
        raise ConfigError(f"{name} are no settings of a memory bank: pass MemoryBankSettings.")
    names_of_bank = MemoryBankSettings.model_fields.keys()
    if not isinstance(settings, Mapping):
        fields = MemoryBankSettings.model_fields
        attributes = {name: getattr(settings, name, None) for name in names_of_bank - {"type"}}
        settings = {name: value for name, value in attributes.items() if value != fields[name].default}
    foreign = {name for model in _MODELS.values() for name in model.model_fields} - names_of_bank
    if names := ", ".join(sorted(foreign & settings.keys())):
        _warn(f"{names}: settings of other strategies, which have no effect on a memory bank: remove them")
    return MemoryBankSettings(**{k: v for k, v in settings.items() if v is not None and k not in foreign})


@cache
def _warn(sentence: str) -> None:
    """Log a warning, once a process."""
    log.warning("%s", sentence)
