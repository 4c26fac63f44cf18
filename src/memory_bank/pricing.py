"""The cost of model calls: prices by model, tokens with a provider's prefix cache, and when a fold pays."""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from operator import attrgetter
from typing import Any, NamedTuple

from memory_bank.config import Price

__all__ = [
    "CACHE_MINIMUM", "HOUR_WRITE", "Charge", "Ledger", "ListPrices", "PrefixCache", "Price", "Ratios", "Usage",
    "cached_tokens", "common_length", "cost", "costs", "full_usage", "growth_that_pays", "known_price", "list_prices",
    "price_of",
]  # fmt: skip

HOUR_WRITE = 2.0
"""The price of a token that the cache keeps for an hour, as a share of the input price."""
CACHE_MINIMUM = 1024
"""Tokens from which providers keep a prefix in their cache."""
LEAST_STANDING = 4_096
"""Tokens of a prefix from which an answer without cached tokens counts: the largest minimum of a provider."""
MOST_TOOLS = 2_000
"""Tokens of memory's tools; more are another request."""
MISSES = 3
"""Answers in a row that report no cached tokens for a prefix that stood, after which no cache is assumed.

A provider that caches may miss the first repetition of a prefix, and some later ones."""
RETRY_AFTER = 50
"""Answers after which a cache is assumed again."""
EXCESS = 0.04
"""The share by which a run may cost more than the full history; 0.05 is promised, and counts differ a little."""
LEAST_GROWTH, MOST_GROWTH = 2_000, 32_000
"""Bounds of ``growth_that_pays`` in tokens, where there is a prefix cache."""
_USUAL_PRICE = Price(prompt=1.0, completion=5.0, cached=0.1)


class Ratios(NamedTuple):
    """Prices of a cached token and of one written to the cache, as shares of the input price."""

    read: float
    write: float

    def price(self, tokens: int, shared: int) -> float:
        """The cost in input tokens of a request that begins as the one before with ``shared`` of its tokens."""
        cached = cached_tokens(min(shared, tokens))
        return cached * self.read + (tokens - cached) * (self.write if tokens >= CACHE_MINIMUM else 1.0)

    def of(self, usage: Usage) -> float:
        """The cost of a reported usage in input tokens, without the output."""
        read = usage.input - usage.cached - usage.written + usage.cached * self.read
        return read + (usage.written - usage.written_hour) * self.write + usage.written_hour * HOUR_WRITE


# by the beginning of a model's name, without its provider
_RATIOS = {
    "claude": Ratios(0.1, 1.25),
    "gpt-4o": Ratios(0.5, 1.0),
    **dict.fromkeys(("gpt-4.1", "o3", "o4"), Ratios(0.25, 1.0)),
}
_USUAL = Ratios(0.1, 1.0)
_UNCACHED = Ratios(1.0, 1.0)
DATED = re.compile(r"[-@:](?:latest|preview|exp|\d{3,}|v\d).*$")
"""The end of a model's name that names an edition of the model at the same price."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of model calls. ``input`` includes those ``cached`` and those that were ``written`` to the cache.

    ``written_hour``: those of ``written`` that the cache keeps for an hour.
    """

    input: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    written_hour: int = 0


def cost(usage: Usage, price: Price) -> float:
    """The cost of tokens, in the currency of the price."""
    cached = price.prompt if price.cached is None else price.cached
    written = price.prompt if price.cache_write is None else price.cache_write
    read = (usage.input - usage.cached - usage.written) * price.prompt + usage.cached * cached
    write = (usage.written - usage.written_hour) * written + usage.written_hour * HOUR_WRITE * price.prompt
    return (read + write + usage.output * price.completion) / 1e6


def costs(
    sent: Usage, full: Usage, price: Price | None, billed: float | None = None
) -> tuple[float, float] | None:
    """Return what some calls cost and what they would have cost with the full history; None without a price.

    ``billed`` is the cost that the provider named itself: the other one is then in proportion to it, by the price
    of the model or, without one, by the usual ratios of prices.
    """
    if billed is None:
        return None if price is None else (cost(sent, price), cost(full, price))
    counted, counted_full = (cost(usage, price or _USUAL_PRICE) for usage in (sent, full))
    return billed, billed * counted_full / counted if counted else billed


def price_of(prices: Mapping[str, Price], model: str) -> Price | None:
    """The price of a model: of the longest name in the table that its name begins with; None without one.

    A provider before a slash, as in ``openai/gpt-4.1``, is ignored where no name in the table has it.
    """
    for name in (model, model.rpartition("/")[2]):
        entry = max((p for p in prices if name.startswith(p)), key=len, default=None)
        if entry is not None:
            return prices[entry]
    return None


@dataclass(frozen=True, slots=True)
class ListPrices:
    """The prices that ship with the package, in dollars for a million tokens of short prompts, by ``normal_name``.

    ``source`` names the package that they are taken from, ``date`` the day (``2026-11-25``).
    """

    source: str
    date: str
    models: Mapping[str, Price]

    def price(self, model: str) -> Price | None:
        """The price of a model by its name, whatever its edition or provider; None for an unknown one.

        >>> list_prices().price("openai/gpt-4.1-2025-04-14").completion
        8.0
        """
        name = normal_name(model)
        return self.models.get(name) or self.models.get(DATED.sub("", name))


@cache
def list_prices() -> ListPrices:
    """The prices that ship with the package; ``make prices`` writes them anew."""
    table = tomllib.loads(files("memory_bank").joinpath("prices.toml").read_text("utf-8"))
    models = {name: Price(**price) for name, price in table["models"].items()}
    return ListPrices(table["source"], str(table["date"]), models)


def known_price(prices: Mapping[str, Price], model: str) -> tuple[Price, str] | None:
    """The price of a model in a table, else that which ships with the package; and where it is from."""
    if (price := price_of(prices, model)) is not None:
        return price, "[prices] in the configuration"
    shipped = list_prices()
    price = shipped.price(model)
    return None if price is None else (price, f"{shipped.source}, {shipped.date}")


@lru_cache(256)
def normal_name(model: str) -> str:
    """The name of a model without its provider, in the one form that ``ListPrices`` uses."""
    return re.sub(r"^.*/|^.*anthropic\.", "", model.lower()).replace(".", "-").rstrip("-")


def cached_tokens(shared: int, minimum: int = CACHE_MINIMUM) -> int:
    """Tokens that the provider reads from its cache where ``shared`` tokens repeat the request before."""
    return shared if shared >= minimum else 0


def full_usage(
    sent: Usage, tokens: int, full_tokens: int, known_tokens: int, *, caches: bool, ratio: float | None = None
) -> Usage:
    """Estimate the usage of the full history from the usage that the provider reported for the context sent instead.

    ``tokens`` (sent), ``full_tokens`` and ``known_tokens`` (of messages that the request before had, too) are as
    memory counts them. ``caches``: the provider has a prefix cache in use. ``ratio``: tokens that the provider counts
    for one of memory's in messages (``PrefixCache.ratio``); None: as in the whole of what was sent.

    Only the difference of both is estimated. The provider's cache is assumed to hold everything that the request
    before had, and the output to be the same, so that savings are not overstated.
    """
    ratio = sent.input / tokens if ratio is None else ratio
    total = max(0, round(sent.input + ratio * (full_tokens - tokens)))
    new = round(ratio * (full_tokens - known_tokens))
    cached = min(total, cached_tokens(total - new)) if caches and known_tokens else 0
    written = total - cached if caches and sent.written else 0
    hour = round(written * sent.written_hour / sent.written) if sent.written else 0
    return Usage(total, cached, written, sent.output, hour)


def growth_that_pays(budget: int, interaction: float, read: float, write: float) -> int:
    """Return the tokens of new interactions after which the next fold pays, at the least cost a step.

    A fold, which writes ``budget`` tokens anew, costs ``(write - read) * budget`` more than a step without one, at
    prices in shares of the input price, and each ``interaction`` of growth costs ``read * interaction`` at every
    later step until the fold. The sum is least after ``sqrt(2 * (write - read) * budget / (read * interaction))``
    interactions. 0, a fold at every step, where nothing is saved by a cache.
    """
    if read >= min(1.0, write):
        return 0
    if read <= 0:
        return MOST_GROWTH
    best = math.sqrt(2 * (write - read) * budget * interaction / read)
    return int(min(MOST_GROWTH, max(LEAST_GROWTH, best)))


@dataclass(slots=True, eq=False)
class Charge:
    """The cost of a step in input tokens, and the cost that the full history would have had.

    ``standing``: tokens at the beginning of the context that repeat the context before; 0 where no cache has them.
    ``is_longer``: the whole context before is repeated. ``counts``: tokens of the request as memory and as the
    provider count them, (0, 0) until the answer reports them; ``before``: those of the request before, None where its
    answer reported none. ``bare``: without memory nothing behind the client's cache marks would be cached; how many
    tokens more memory's cover, and how many more of them are cached (infinite where the client has none); None where
    memory's count as the client's. ``cache_marks``: after how many messages of the context memory sets its cache
    mark, and how many of them are cached; None: as for any other request.
    """

    paid: float
    full: float
    standing: int = 0
    is_longer: bool = False
    counts: tuple[int, int] = (0, 0)
    before: tuple[int, int] | None = None
    bare: tuple[float, float] | None = None
    cache_marks: tuple[int, int] | None = None


class StepTokens(NamedTuple):
    """The tokens of a step as memory counts them.

    ``sent``: of the whole request; ``context``: of its context; ``full``: of the full history, of which ``repeated``
    were in the request before; ``beside``: of the client's tools, which all these include. ``is_full``: the context
    is the full history.
    """

    sent: int
    context: int
    full: int
    repeated: int
    beside: int
    is_full: bool


class Ledger:
    """The cost of a session so far in input tokens, and that of the full history. Thread-safe.

    A step is estimated from the prices and from what its request shares with the one before, until its usage is
    reported. ``sent`` are the digests of the last step's context, empty where the provider has nothing of it in its
    cache, ``came`` those of the messages that it was made of, ``before`` both of the step before, ``last`` what that
    step costs. ``in_vain``: tokens of the older history when a fold would have removed nothing; None where that has
    not happened since the last fold. A bank keeps all this with the session: ``take`` returns what was added since it
    was asked last. ``beside``: tokens that are sent beside the messages with memory and without, such as the
    client's tools; ``added``: those that memory adds there. ``unmarked``: a digest of what stands before the
    messages, where the client's cache marks cover no more than a ``head`` of its request: 0: nothing, 1: the tools,
    n + 1: also n messages. ``sent`` begins with it then; where memory's cache marks are not at the end of a step's
    context, ``sent`` ends with the last of them, and ``came`` with the client's.
    """

    def __init__(self, added: int = 0) -> None:
        self.paid = self.full = 0.0
        self.beside, self.added, self.unmarked, self.head = 0, added, b"", 0
        self.sent: Sequence[bytes] = ()
        self.came: Sequence[bytes] = ()
        self.before: tuple[Sequence[bytes], Sequence[bytes]] = (), ()
        self.in_vain: int | None = None
        self.last = Charge(0.0, 0.0)
        self._untaken = 0.0, 0.0
        self._shared: tuple[object, object, int, int] = (), (), 0, 0
        self._lock = threading.Lock()

    def shared_with(self, digests: Sequence[bytes]) -> int:
        """How many messages the list and the one before have in common at the beginning; cached for the same list."""
        came, asked, size, _ = self._shared
        if came is not self.came or asked is not digests or size != len(digests):
            self._shared = self.came, digests, len(digests), common_length(self.came, digests)
        return self._shared[3]

    def step(
        self, ratios: Ratios, tokens: int, shared: int, full: int, repeated: int, marked: int = 0
    ) -> Charge:
        """The cost of a step whose messages have ``tokens`` tokens, the first ``shared`` as in the context before.

        ``full``: tokens of all messages: ``repeated`` of them were there one step before, ``marked`` are under cache
        marks of the client.
        """
        beside, whole = self.beside + self.added, self.beside + full
        has_cache = self.sent and (self.came or self.head or not self.unmarked)
        cached = self.beside + repeated if has_cache else 0
        charge = Charge(
            ratios.price(beside + tokens, beside + shared if self.sent else 0), ratios.price(whole, cached)
        )
        if self.unmarked:
            head = cached_tokens(self.beside + marked) if self.head else 0
            bare = whole - head + ratios.price(head, cached)
            if charge.full > bare:
                charge.bare, charge.full = (head, min(head, cached)), bare
        return charge

    def mark_cache(
        self, charge: Charge, cache: PrefixCache, sizes: Sequence[int], shared: int, head: int
    ) -> int:
        """Charge for a cache mark as late in a step's context as the run stays hardly dearer; return where it is.

        Of tools and messages ``shared`` are cached, ``head`` under the client's; ``sizes``: the tokens before each.
        """
        ratios, models = cache.ratios, {*cache.asked, cache.key}
        # tokens of other models may be cheaper
        most = min(self.saved, self.saved / len(models)) + (1 + EXCESS) * charge.full
        cached = cached_tokens(sizes[shared])
        at = shared if cached else 0
        least = max(at, head if cached_tokens(sizes[head]) else 0)

        def price(n: int) -> float:
            return sizes[-1] - sizes[n] + cached * ratios.read + (sizes[n] - cached) * ratios.write

        ends = (n for n in range(len(sizes) - 1, max(least, 1), -1) if sizes[n] >= CACHE_MINIMUM)
        marked = next((n for n in ends if price(n) <= max(most, price(least))), least)
        if is_part := marked < len(sizes) - 1:
            charge.paid = price(marked)
        if is_part or charge.bare:
            charge.cache_marks = max(0, marked - 1), max(0, at - 1)
        if charge.bare:
            end, read = charge.bare if charge.bare[0] else (-math.inf, -math.inf)
            charge.bare = sizes[marked] - end, cached - read
        return marked

    @property
    def saved(self) -> float:
        """The input tokens that may still be paid."""
        return (1 + EXCESS) * self.full - self.paid

    def add(self, charge: Charge, sent: Sequence[bytes], came: Sequence[bytes] = ()) -> None:
        """Add what a step costs, and keep the digests of its context and of its messages."""
        self.before = self.sent, self.came
        self.sent, self.came, self.last = sent, came, charge
        self.settle(Charge(0.0, 0.0), charge.paid, charge.full)

    def settle(self, charge: Charge, paid: float, full: float) -> None:
        """Replace the estimated cost of a step by the reported one."""
        with self._lock:
            added, added_full = paid - charge.paid, full - charge.full
            charge.paid, charge.full = paid, full
            self.paid, self.full = self.paid + added, self.full + added_full
            self._untaken = self._untaken[0] + added, self._untaken[1] + added_full

    def account(
        self,
        cache: PrefixCache,
        charge: Charge | None,
        counts: StepTokens,
        sent: Usage,
        *,
        by_marks: bool,
        tells: bool,
    ) -> Usage:
        """Replace the estimated cost of a step by the reported one; return the usage of the full history.

        ``by_marks``: the API caches at cache marks alone, else reports zeros; ``tells``: the answer tells of a cache.
        """
        has_cache = sent.cached + sent.written > 0
        caches, tokens, ratio, full, bare = has_cache if by_marks else tells, counts.sent, None, sent, None
        if charge is not None:
            bare, rest = charge.bare, tokens - counts.context  # of memory's tools, or of another request
            whole, plain = 0 <= rest <= MOST_TOOLS, counts.is_full and 20 * (rest + counts.beside) <= tokens
            ratio = cache.ratio(charge, tokens, sent.input, whole=whole, plain=plain)
            if whole and rest:  # tools are counted in another ratio: memory's are taken in that of messages
                tools = sent.input / ratio - (counts.context - counts.beside)
                rest = round(min(3 * rest, max(rest / 5, tools * rest / (rest + counts.beside))))
                tokens = counts.context + rest
        if bare or not counts.is_full or tokens != counts.full:  # also one that no cache had
            caches = caches and not bare
            full = full_usage(sent, tokens, counts.full, counts.repeated, caches=caches, ratio=ratio)
        if bare and ratio:  # what the client marks
            marked = min(full.input, int(max(0, sent.cached + sent.written - ratio * bare[0])))
            cached = min(marked, int(max(0, sent.cached - ratio * bare[1])))
            written = marked - cached
            hour = min(written, sent.written_hour)
            full = replace(full, cached=cached, written=written, written_hour=hour)
        if charge is not None and ratio and (by_marks or tells):
            if has_cache or bare or not cache.is_listed:
                self.settle(charge, cache.ratios.of(sent) / ratio, cache.ratios.of(full) / ratio)
            else:  # a cache may be there all the same: tokens alone are taken, which memory may count otherwise
                self.settle(charge, charge.paid * sent.input / ratio / max(1, tokens), charge.full)
        return full

    def take(self) -> tuple[float, float]:
        """The additions to both sums since the last call, to be stored."""
        with self._lock:
            taken, self._untaken = self._untaken, (0.0, 0.0)
        return taken

    def give_back(self, paid: float, full: float) -> None:
        """Keep for the next ``take`` what could not be stored."""
        with self._lock:
            self._untaken = self._untaken[0] + paid, self._untaken[1] + full

    def load(self, paid: float, full: float) -> None:
        """Take the sums that are stored, which other processes add to as well."""
        with self._lock:
            self.paid, self.full = paid + self._untaken[0], full + self._untaken[1]


MODELS = 4  # of which a session keeps when they were asked


class PrefixCache:
    """What a provider charges for a prefix in its cache, and what its answers report of that cache. Thread-safe.

    ``cached_for``: seconds for which the latest request asks to keep its prefix, 0 where it does not say. ``ratios``
    are 0.1 and 1 until ``take_price`` is called, for a ``model``, and 1 and 1 while the provider reports that nothing
    is cached and no price of the model's cached tokens ``is_listed``: else there may be an unreported one. ``asked``:
    by the newest MODELS, the seconds from its latest request to the session's latest. A bank keeps both with the
    session: ``told``, by a digest of a model's name (``key``), which may hold a secret. As no prefix stands in a
    session that folds at every step, a cache is assumed again after RETRY_AFTER answers, or at the first with cached
    tokens.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.model, self.key, self.cached_for = "", "", 0
        self._ratios, self.is_listed = _USUAL, False
        self.price: Price | None = None  # of the model
        self.asked: dict[str, float] = {}
        self._latest: Charge | None = None
        self._answered: tuple[int, int] | None = None  # counts of the newest request once it has its answer
        self._grown = (0, 0)  # tokens as memory and as the provider count them
        self._misses = 0

    @property
    def ratios(self) -> Ratios:
        """The prices of cached tokens; 1 and 1 where the provider caches nothing, and no price says that it does."""
        if self.is_denied and not self.is_listed:
            return _UNCACHED
        read, write = self._ratios
        return Ratios(read, HOUR_WRITE) if write > 1 and self.cached_for else self._ratios

    @property
    def holds(self) -> bool:
        """Whether the cache of the model can be expected to have what the session was sent last."""
        return not self._misses and next(iter(self.asked), self.key) == self.key

    @property
    def is_denied(self) -> bool:
        """Whether the provider reports that nothing is cached."""
        return self._misses >= MISSES

    read = property(attrgetter("ratios.read"), doc="The price of a cached token.")
    write = property(attrgetter("ratios.write"), doc="The price of a token that is written to the cache.")

    def take_price(self, price: Price | None, model: str = "") -> None:
        """Set the ratios by a model's price; where it has no cached price, by the model's name.

        What was reported of another model is forgotten.
        """
        name = model.rpartition("/")[2]
        ratios = next((ratio for start, ratio in _RATIOS.items() if name.startswith(start)), _USUAL)
        if is_listed := price is not None and price.prompt > 0 and price.cached is not None:
            write = price.prompt if price.cache_write is None else price.cache_write
            ratios = Ratios(price.cached / price.prompt, write / price.prompt)
        with self._lock:
            self._ratios, self.is_listed, self.price = ratios, is_listed, price
            if model != self.model:
                self.model, self._misses, self._answered = model, 0, None
                self.key = hashlib.sha256(model.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def answered(
        self, charge: Charge, cached: int | None, *, by_marks: bool = False, written: int = 0
    ) -> None:
        """Take the cached tokens that the complete answer to a request reports, None for unknown.

        ``by_marks``: the provider caches a prefix at cache marks alone. A request that changes the messages before
        the last of them need not find anything, and says nothing of the cache; neither does a prefix shorter than
        LEAST_STANDING. ``written``: tokens that are cached from now on.
        """
        if cached == 0 and charge.bare:  # what memory's first marks have written can be read
            cached = written
        stands = charge.before is not None and (charge.is_longer or not by_marks)
        standing = charge.standing if stands else 0
        if charge.cache_marks is not None:
            standing = LEAST_STANDING * bool(charge.cache_marks[0])
        with self._lock:
            if cached or self._misses >= MISSES + RETRY_AFTER - 1:
                self._misses = 0
            elif self._misses >= MISSES or (cached is not None and standing >= LEAST_STANDING):
                self._misses += 1
            if charge is self._latest and (cached is not None or charge.counts[0]):
                self._answered = charge.counts

    def ratio(self, charge: Charge, tokens: int, reported: int, *, whole: bool, plain: bool = False) -> float:
        """Return how many tokens the provider counts for one token counted by memory, in this session's messages.

        ``tokens``: as memory counts a request with its tools; ``reported``: as the provider does. Between requests
        of which one begins with the other the messages alone differ: how both counts grew tells the ratio.
        ``whole``: these are one request, and not several with hidden turns. ``plain``: it is hardly more than the
        messages as they came, which tell it alone until more is known.
        """
        with self._lock:
            charge.counts = (tokens, reported) if whole else (0, 0)
            before = (charge.before if charge.is_longer else None) or (0, 0)
            grown = tokens - before[0], reported - before[1]
            is_telling = before[0] or (plain and not self._grown[0])
            if whole and is_telling and min(grown) > 0:
                self._grown = self._grown[0] + grown[0], self._grown[1] + grown[1]
            sent, counted = self._grown
        return counted / sent if sent >= LEAST_GROWTH else reported / tokens

    def ask(self, idle: float, charge: Charge) -> None:
        """Record a request and its ``charge``. ``idle``: seconds since the session's previous request."""
        with self._lock:
            asked = {self.key: 0.0, **{m: round(age + idle, 1) for m, age in self.asked.items()}}
            asked[self.key] = 0.0
            self.asked = dict(sorted(asked.items(), key=lambda item: item[1])[:MODELS])
            charge.before, self._answered, self._latest = self._answered, None, charge

    @property
    def told(self) -> str | None:
        """The reports of cache and counts, and the models that were asked, as JSON; None for nothing."""
        with self._lock:
            if not self.asked and not self._misses:
                return None
            return json.dumps([self.key, self._misses, self.asked, self._answered, self._grown])

    def tell(self, told: str | None) -> None:
        """Load what another process stored by ``told``; reports about another model are dropped."""
        values: list[Any] = json.loads(told) if told else []
        none: list[Any] = [self.key, 0, {}, None, (0, 0)]
        model, misses, self.asked, answered, grown = values + none[len(values) :]  # an older bank has fewer
        with self._lock:
            is_same = model == self.key
            self._misses, self._answered = (misses, answered) if is_same else (0, None)
            self._grown = (grown[0], grown[1])


def common_length(before: Sequence[object], now: Sequence[object]) -> int:
    """Return how many messages two lists have in common at the beginning; ones that cannot be compared differ."""
    shorter, position = min(len(before), len(now)), 0
    with suppress(Exception):  # too deep, or foreign objects that refuse to be compared
        if (before if len(before) == shorter else before[:shorter]) == now[:shorter]:
            return shorter
        while before[position] is now[position] or before[position] == now[position]:
            position += 1
    return position
