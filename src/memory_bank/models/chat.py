"""Chat models: the openai client as a ``ChatModel``, calls with a time limit, and the text of any answer."""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from memory_bank.config import hint
from memory_bank.errors import ConfigError, MissingExtraError, ModelError
from memory_bank.models.usage import ReportedUsage, read_usage
from memory_bank.ports import ChatModel
from memory_bank.transcript.messages import read

log = logging.getLogger("memory_bank.Observer")

_respelled: dict[tuple[str, str], str] = {}  # endpoint, model → the spelling that the endpoint knows


def ask(chat: ChatModel, messages: Sequence[dict[str, Any]], model: str, timeout: float | None) -> object:
    """The answer of a chat model.

    Raises TimeoutError when it takes longer than ``timeout`` seconds (the call then goes on in its thread,
    and its answer is dropped), and whatever the model raises.
    """
    answer: Future[object] = Future()

    def call() -> None:
        try:
            answer.set_result(chat.generate_plain(input_messages=list(messages), model=model))
        except BaseException as e:
            answer.set_exception(e)

    if timeout is None:
        call()
    else:
        threading.Thread(target=call, name="memory-bank-observer-call", daemon=True).start()
    return answer.result(timeout)


def reply_text(answer: object) -> str:
    """The text of a chat model's answer, ``""`` when there is none; never raises.

    ``answer`` is a str, an OpenAI-shaped completion (SDK object, SimpleNamespace or dict) with
    ``choices[0].message.content``, or a message with ``content``. Content is a str, None or a list of parts,
    whose texts are joined.
    """
    if isinstance(answer, str):
        return answer
    choices = read(answer, "choices")
    if choices is not None:
        try:
            answer = read(choices[0], "message")
        except Exception:
            return ""
    content = read(answer, "content")
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        return ""
    texts = (part if isinstance(part, str) else read(part, "text") for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def usage_of(answer: object) -> ReportedUsage:
    """The usage that a model reported with its answer, a dict or an SDK's object. Never raises."""
    return read_usage(read(answer, "usage"))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def openai_package() -> Any:
    """The module ``openai``. Raises MissingExtraError."""
    try:
        import openai
    except ImportError as e:
        raise MissingExtraError("openai, the client of chat models and embeddings,", "openai") from e
    return openai


class OpenAIChat:
    """A ``ChatModel`` on any OpenAI-compatible endpoint, through the openai client.

    ``client`` is an ``openai.OpenAI`` to use as it is; without one, a client is made from ``base_url``
    (default OPENAI_BASE_URL, or OpenAI itself), ``api_key`` (default OPENAI_API_KEY), ``timeout`` in seconds
    and ``max_retries``, for which the extra ``openai`` is needed. Safe under threads, as the client is.

    Raises ModelError without an API key, ConfigError for a client together with base_url or api_key,
    MissingExtraError without openai.
    """

    def __init__(
        self,
        client: Any = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 60.0,
        max_retries: int = 2,
    ) -> None:
        if client is not None and (base_url is not None or api_key is not None):
            raise ConfigError("OpenAIChat takes a client, or base_url and api_key, not both")
        if client is None:
            openai = openai_package()
            try:
                client = openai.OpenAI(
                    base_url=base_url, api_key=api_key, timeout=timeout, max_retries=max_retries
                )
            except openai.OpenAIError:
                raise ModelError(
                    "no API key for the chat model: set OPENAI_API_KEY (any text will do for a local server "
                    "at OPENAI_BASE_URL), or pass api_key= and base_url="
                ) from None
            except Exception as e:  # its HTTP client reads the environment
                raise ConfigError(
                    f"the chat model's client cannot be made ({type(e).__name__}): check HTTPS_PROXY, HTTP_PROXY, "
                    "ALL_PROXY and SSL_CERT_FILE."
                ) from None
        self._client = client

    def __eq__(self, other: object) -> bool:
        """Return whether both use the same client."""
        return isinstance(other, OpenAIChat) and self._client is other._client

    def __hash__(self) -> int:
        return hash(id(self._client))

    def generate_plain(self, *, input_messages: list[dict[str, Any]], model: str, **options: Any) -> Any:
        """One chat completion (the client's own object); ``options`` are passed to the client's ``create``.

        Messages are sent as given and not changed; lone surrogates, which UTF-8 cannot encode, are sent as
        U+FFFD. Where the endpoint does not know ``gpt-4-1-mini``, it is asked for ``gpt-4.1-mini`` from then on.
        Raises ModelError when there is no completion; one without text is returned.
        """
        if options.get("stream"):
            raise ConfigError(
                "generate_plain does not stream: leave stream= out, or use the openai client itself"
            )
        place = (str(read(self._client, "base_url")), model)
        try:
            answer = self._complete(input_messages, _respelled.get(place, model), options)
        except Exception as error:
            dotted = dotted_name(model)
            if dotted == model or place in _respelled or getattr(error, "status_code", None) != 404:
                raise model_error(error, model, self._client) from error
            try:
                answer = self._complete(input_messages, dotted, options)
            except Exception:
                raise model_error(error, model, self._client) from error
            _respelled[place] = dotted
            where = _host(self._client)
            log.warning("the chat model %s%s is called %s there: set that", model, where, dotted)
        return checked_completion(answer, self._client)

    def _complete(self, messages: list[dict[str, Any]], model: str, options: dict[str, Any]) -> Any:
        create = self._client.chat.completions.create
        try:
            return create(messages=messages, model=model, **options)
        except UnicodeEncodeError:
            return create(messages=_encodable(messages), model=model, **options)

    def check(self, model: str) -> None:
        """Raise ConfigError if the endpoint tells which models it has, and this is none of them."""
        models = self._client.with_options(timeout=5.0, max_retries=0).models
        listed: list[str] = []
        try:
            listed = [str(each.id) for each in models.list()]
            if not {model, dotted_name(model)}.intersection(listed):
                models.retrieve(model)  # lists may leave out other names of a model
        except Exception as error:  # or it cannot be reached, has no such list, wants another key
            if listed and getattr(error, "status_code", None) == 404:
                near = hint(model, listed, f"it has {', '.join(sorted(listed)[:5])}.")
                unknown = f"the API{_host(self._client)} does not know the model {model!r}"
                raise ConfigError(f"{unknown}: {near}") from None


def dotted_name(model: str) -> str:
    """A model's name as OpenAI writes it: ``gpt-4.1-mini`` of ``gpt-4-1-mini``."""
    return re.sub(r"^(gpt-\d)-(\d)(?=-|$)", r"\1.\2", model)


def is_async(client: object) -> bool:
    """Return whether an openai client is an asynchronous one."""
    create = create_of(client)
    return callable(create) and (_is_async(create) or type(client).__name__.startswith("Async"))


def checked_completion(answer: Any, client: object) -> Any:
    """The answer. Raises ModelError unless it is a chat completion."""
    if isinstance(answer, str) or read(answer, "choices") is None:
        raise ModelError(
            f"the endpoint{_host(client)} answered, but with no chat completion: "
            "check base_url (it often ends in /v1) and the model name"
        )
    return answer


def model_error(error: Exception, model: str, client: object) -> ModelError:
    """A client's error as a ModelError: one sentence without any content of the call."""
    return ModelError(explain(error, f"the chat model {str(model)[:80]!a}{_host(client)}"))


def as_chat_model(client: object) -> ChatModel | None:
    """An ``llm_client`` as a ``ChatModel``: None, a chat model as it is, an openai client in an OpenAIChat.

    Anything with a callable ``generate_plain`` is a chat model. One with other parameters is called as they
    allow: with ``messages=`` or the messages first, and without the model's name where it takes none. Raises
    ConfigError where none of these fits, and for an asynchronous client, a class, or anything else.
    """
    if client is None:
        return None
    if isinstance(client, type):
        raise ConfigError(f"llm_client is the class {client.__name__}: pass an instance of it")
    method, name = getattr(client, "generate_plain", None), type(client).__name__
    if callable(method):
        if _is_async(method):
            raise ConfigError(f"generate_plain of {name} is async: pass a synchronous one")
        form = _form_of(method, name)
        return PlainChat(client, form) if form is not _FORMS[0] else client  # type: ignore[return-value]
    if not callable(create_of(client)):
        raise ConfigError(
            f"llm_client cannot be a {name}: pass an openai.OpenAI client, "
            "an object with generate_plain(input_messages=, model=), or None"
        )
    if is_async(client):
        raise ConfigError(f"{name} is asynchronous: pass a synchronous client such as openai.OpenAI")
    return OpenAIChat(client)


Form = Callable[[Callable[..., Any], Any, str], Any]
_FORMS: tuple[Form, ...] = (
    lambda call, messages, model: call(input_messages=messages, model=model),
    lambda call, messages, model: call(messages=messages, model=model),
    lambda call, messages, model: call(messages, model=model),
    lambda call, messages, _: call(input_messages=messages),
    lambda call, messages, _: call(messages=messages),
    lambda call, messages, _: call(messages),
)
"""How a generate_plain may take the messages and the model; the first is the documented one."""


def _form_of(method: Callable[..., object], owner: str) -> Form:
    """The first form that a ``generate_plain`` takes; the documented one where its signature is not known."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return _FORMS[0]
    for form in _FORMS:
        with suppress(TypeError):
            form(signature.bind, [], "")
            return form
    raise ConfigError(
        f"generate_plain of {owner} takes {str(signature)[:120]}: "
        "give it the parameters (*, input_messages, model), or (messages, model)."
    )


@dataclass(frozen=True)
class PlainChat:
    """A client whose ``generate_plain`` takes its arguments in another form, as a ``ChatModel``."""

    client: Any
    form: Form

    def generate_plain(self, *, input_messages: list[dict[str, Any]], model: str) -> object:
        """The client's answer. Raises what the client raises."""
        return self.form(self.client.generate_plain, input_messages, model)


def failure_of(error: Exception) -> str:
    """Why a call of a chat model failed: status, cause and what to do, without any content of the call."""
    if isinstance(error, ModelError):
        return str(error)
    numbers = (_count(read(error, name)) or 0 for name in ("status_code", "status", "code"))
    status = next((s for s in numbers if 400 <= s <= 599), None)
    reason = f"the model failed with {type(error).__name__}"
    return reason if status is None else f"{reason} (HTTP {status}): {_advice(status)}"


def create_of(client: object) -> object:
    """The method of an openai client that makes a completion; None where there is none."""
    return getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None)


def kinds_of(error: Exception) -> set[str]:
    """The names of an error's classes, by which openai's errors are known without importing it."""
    return {kind.__name__ for kind in type(error).__mro__}


def explain(error: Exception, who: str) -> str:
    """The error of a call by an openai client and what to do, without any content of the call."""
    kinds = kinds_of(error)
    if "APITimeoutError" in kinds:
        return f"{who} did not answer in time: raise the timeout, or send less"
    if "APIConnectionError" in kinds:
        return f"{who} cannot be reached, or hung up: check base_url and the network"
    if "APIStatusError" in kinds:
        status, code = _count(read(error, "status_code")) or 0, read(error, "code")
        plain = isinstance(code, str) and re.fullmatch(r"[\w.-]{1,60}", code, re.ASCII)
        return f"{who} refused (HTTP {status}{f', {code}' if plain else ''}): {_advice(status)}"
    advice = "check base_url, the options passed and the endpoint's log"
    return f"{who} gave no usable answer ({type(error).__name__}): {advice}"


def _advice(status: int) -> str:
    if status in (408, 409) or status >= 500:
        return "the endpoint is in trouble, try again later"
    return {
        401: (key := "check the API key (OPENAI_API_KEY) and that it belongs to this base_url"),
        403: key,
        404: "check the model name and base_url (it often ends in /v1)",
        413: "the request is too large, send less",
        429: "wait, check the quota, or raise max_retries",
    }.get(status, "check that the messages fit the model, in shape and in length")


def _host(client: object) -> str:
    """`` at HOST`` of a client, without the credentials that an address may carry; empty when unknown."""
    try:
        parts = urlsplit(str(read(client, "base_url")))
        port = f":{parts.port}" if parts.port else ""
        return f" at {parts.hostname}{port}" if parts.hostname else ""
    except Exception:
        return ""


def _encodable(value: Any) -> Any:
    """A copy in which every text can be UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(v) for v in value]
    return value


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))
