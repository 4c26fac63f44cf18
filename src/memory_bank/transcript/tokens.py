"""Token counts of texts and messages: by tiktoken, or by a labelled approximation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from memory_bank.ports import TextCounter, TokenCounter
from memory_bank.transcript.jsontext import compact, plain
from memory_bank.transcript.messages import is_text_part, part_text, read

log = logging.getLogger("memory_bank.Tokens")

APPROXIMATE = "approximate"  # the name of the counter that estimates
ENCODING = "o200k_base"  # of the models that most agents call today
FRAME_TOKENS = 4  # role and separators of a message, as in OpenAI's chat format
MEDIA_TOKENS = 765  # an image of 1024 x 1024 in high detail, by OpenAI's rule; others are charged the same
_MEDIA = frozenset(
    {
        "image", "image_url", "input_image", "image_file", "file", "input_file", "document", "audio", "input_audio",
        "video", "video_url", "input_video", "computer_screenshot",
    }
)  # fmt: skip
# Members of other parts that the model does not read as text.
_UNREAD = frozenset({"id", "signature", "encrypted_content", "data", "cache_control", "status"})
_REASONING = ("reasoning_details", "reasoning_content", "reasoning")
"""Members of a chat message with what the model thought, of which a provider reads the first that is given."""
_CHUNK = 8_000  # characters encoded at once: keeps tiktoken linear on text without blanks
_SAMPLE_OVER = 2_000_000  # longer texts are counted on an even sample of chunks
_LOAD_SECONDS = 5.0
_MOST_LOAD_SECONDS = 60.0  # after which a vocabulary that is still being loaded is not waited for


class MessageCounter:
    """A ``TokenCounter`` that counts messages by their texts, with a function that counts a text."""

    def __init__(self, name: str, approximate: bool, count: TextCounter) -> None:
        self.name = name
        self.approximate = approximate
        self._count = count

    def __repr__(self) -> str:
        return f"<token counter {self.name}>"

    def count_text(self, text: str) -> int:
        """Tokens of a text. Texts over two million characters are estimated from an even sample."""
        n = len(text)
        if n <= _CHUNK:
            return self._count(text) if text else 0
        starts = range(0, n, _CHUNK)
        step = -(-len(starts) * _CHUNK // _SAMPLE_OVER) if n > _SAMPLE_OVER else 1
        counted = [(min(_CHUNK, n - s), self._count(text[s : s + _CHUNK])) for s in starts[::step]]
        chars = sum(c for c, _ in counted)
        tokens = sum(t for _, t in counted)
        return tokens if chars == n else round(tokens * n / chars)

    def count_message(self, message: object) -> int:
        """Tokens of a chat message or a Responses item: content, reasoning, calls and frame."""
        total = FRAME_TOKENS
        content = read(message, "content")
        if isinstance(content, str):
            total += self.count_text(content)
        elif isinstance(content, (list, tuple)):
            total += sum(map(self._count_part, content))
        elif content is not None:
            total += self.count_text(compact(plain(content)))
        thoughts = (read(message, name) for name in _REASONING)
        thought = next((t for t in thoughts if isinstance(t, (str, list, tuple)) and t), "")
        if isinstance(thought, str):
            total += self.count_text(thought)
        else:
            total += sum(map(self._count_part, thought))
        tool_calls = read(message, "tool_calls")
        for call in tool_calls if isinstance(tool_calls, (list, tuple)) else ():
            body = read(call, "function") or read(call, "custom") or call
            total += self._count_call(body)
        legacy = read(message, "function_call")
        if legacy is not None and not callable(legacy):
            total += self._count_call(legacy)
        if read(message, "role") is None:  # a Responses item: a call, an output, reasoning
            total += self._count_call(message)
            output = read(message, "output")
            if output is not None:
                total += self.count_message({"role": "tool", "content": output}) - FRAME_TOKENS
        return total

    def _count_part(self, part: object) -> int:
        """Tokens of a content part: its text, a fixed number for an image or file, else its members as JSON."""
        kind = read(part, "type")
        if is_text_part(part) or not isinstance(kind, str) or not kind:
            return self.count_text(part_text(part))
        if kind in _MEDIA:
            source = read(part, "source")
            text = read(source, "data") if read(source, "type") == "text" else None
            return self.count_text(text) if isinstance(text, str) else MEDIA_TOKENS
        members = plain(part)
        if not isinstance(members, dict):
            return self.count_text(part_text(part))
        content = members.get("content")
        total = sum(map(self._count_part, content)) if isinstance(content, list) else 0
        uncounted = _UNREAD | ({"content"} if isinstance(content, list) else set())
        return total + self.count_text(compact({k: v for k, v in members.items() if k not in uncounted}))

    def _count_call(self, body: object) -> int:
        total = 0
        for key in ("name", "arguments", "input"):
            value = read(body, key)
            if value is not None:
                total += self.count_text(value if isinstance(value, str) else compact(plain(value)))
        return total


def _classes(letter: bytes, digit: bytes, sign: bytes) -> bytes:
    """A table for ``bytes.translate``: letters, digits and signs of ASCII as these bytes, all else as blanks."""
    table = bytearray(b" " * 256)
    for code in range(128):
        if chr(code).isalpha():
            table[code : code + 1] = letter
        elif chr(code).isdigit():
            table[code : code + 1] = digit
        elif chr(code).isprintable() and code != ord(" "):
            table[code : code + 1] = sign
    return bytes(table)


_KINDS = _classes(b"a", b"0", b"!")
_LETTERS, _DIGITS = _classes(b"a", b" ", b" "), _classes(b" ", b"0", b" ")
_SIGNS = _classes(b" ", b" ", b"!")
_NOT_ASCII = bytes(range(128, 256))


def approximate_count(text: str) -> int:
    """An estimate without a vocabulary, linear in the text.

    One token for each eight letters or three digits, or a part of them, 1.1 for a run of ASCII signs, 0.8 for
    a character beyond ASCII, half a token for a line break. Within 13% of o200k_base on recorded tool outputs.
    """
    if not text:
        return 0
    raw = text.encode("utf-8", "surrogatepass")
    kinds = raw.translate(_KINDS)
    # each eight letters and each three digits become one byte; a shorter run that is left is one token, too
    rest = kinds.replace(b"aaaaaaaa", b"\x01").replace(b"000", b"\x01")
    words = rest.count(b"\x01") + len(rest.translate(_LETTERS).split()) + len(rest.translate(_DIGITS).split())
    total = words + 1.1 * len(kinds.translate(_SIGNS).split()) + 0.5 * text.count("\n")
    if len(raw) > len(text):
        total += 0.8 * (len(text) - len(raw.translate(None, _NOT_ASCII)))
    return max(1, round(total))


def approximate_counter() -> TokenCounter:
    """The counter that estimates, without a vocabulary."""
    return MessageCounter(APPROXIMATE, True, approximate_count)


def open_counter(encoding: str = ENCODING, seconds: float = _LOAD_SECONDS) -> TokenCounter:
    """The counter of a tiktoken encoding; the approximate one where its vocabulary is not there, or not there yet.

    tiktoken reads its cache (``TIKTOKEN_CACHE_DIR``) or downloads: the first call waits for it (``seconds``), and
    later calls give the exact counter once it is loaded. ``"approximate"`` gives the approximate counter.
    """
    if encoding == APPROXIMATE:
        return approximate_counter()
    return _vocabulary(encoding).counter(seconds) or approximate_counter()


def is_loading(encoding: str) -> bool:
    """Return whether an encoding's vocabulary is still being loaded: ``open_counter`` may give another one soon."""
    return encoding != APPROXIMATE and _vocabulary(encoding).is_loading


class _Vocabulary:
    """A tiktoken encoding that a thread loads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._counter: TokenCounter | None = None
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._load, daemon=True, name="memory-bank-tiktoken")
        self._thread.start()

    @property
    def is_loading(self) -> bool:
        seconds = time.monotonic() - self._started
        return self._counter is None and self._thread.is_alive() and seconds < _MOST_LOAD_SECONDS

    def counter(self, seconds: float) -> TokenCounter | None:
        """Its counter; None where it cannot be loaded, or is not there yet, ``seconds`` after this began."""
        if self.is_loading:
            self._thread.join(max(0.0, self._started + seconds - time.monotonic()))
        return self._counter

    def _load(self) -> None:
        try:
            self._counter = MessageCounter(self._name, False, encoding_counter(_encoding(self._name)))
        except Exception as e:  # no network, no cache, an unknown encoding: the estimate serves
            kind = type(e).__name__
            log.info(
                "the vocabulary %s cannot be loaded (%s): token counts are approximate", self._name, kind
            )


_vocabulary = lru_cache(maxsize=8)(_Vocabulary)


def _encoding(name: str) -> Any:
    """The tiktoken encoding: the program's own where it has loaded that, else one without the table of its ranks.

    tiktoken keeps the table (24 MB) beside the native form of it, which alone counts.
    """
    import tiktoken
    from tiktoken import registry

    if name in registry.ENCODINGS or name not in tiktoken.list_encoding_names():
        return tiktoken.get_encoding(name)
    encoding = tiktoken.Encoding(**registry.ENCODING_CONSTRUCTORS[name]())  # type: ignore[index]
    encoding._mergeable_ranks = {}
    return encoding


def encoding_counter(encoding: Any) -> TextCounter:
    """A function that counts a text's tokens by a ``tiktoken.Encoding``; special tokens are plain text."""

    def count(text: str) -> int:
        try:
            return len(encoding.encode_ordinary(text))
        except UnicodeEncodeError:  # lone surrogates
            return len(encoding.encode_ordinary(text.encode("utf-8", "replace").decode("utf-8")))

    return count


def newest_within(costs: Sequence[int], budget: int, most: int | None = None) -> int:
    """How many of the last items cost at most ``budget`` together, ``most`` at most; no cost is negative.

    Example:
        >>> newest_within([5, 1, 2, 3], 6)
        3
    """
    count = 0
    limit = len(costs) if most is None else min(most, len(costs))
    while count < limit and costs[-count - 1] <= budget:
        count += 1
        budget -= costs[-count]
    return count
