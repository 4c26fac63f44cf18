"""The sessions that chance leaves without memory, and what the others cost beside them."""

from __future__ import annotations

import hmac
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import sqlalchemy as sa

from memory_bank.bank.database import ANY, Database
from memory_bank.bank.schema import SESSION, SET_SESSION, of_namespace, of_session, records, sessions, steps
from memory_bank.bank.steps import usage_sums
from memory_bank.config import Price
from memory_bank.pricing import costs, known_price

LEAST = 30
"""Sessions of each group below which no interval is told: dollars a session are skewed, it would be too narrow."""
_SMALLEST = 0.1  # a saving that is to be seen even where less is expected
_POWER = NormalDist().inv_cdf(0.975) + NormalDist().inv_cdf(0.8)

_s = sessions.c
_CONTROL = sa.select(_s.control).where(of_session(sessions))
_BEGUN = sa.select(
    sa.or_(
        _s.forked_from.is_not(None),
        *(sa.exists().where(table.c.session_id == SESSION) for table in (records, steps)),
    )
).where(of_session(sessions))


def is_control(database: Database, session_id: str, share: float = 0.0, *, stores: bool = False) -> bool:
    """Return whether a session goes without memory: as stored, else drawn by chance for a ``share``.

    Every process draws the same, by the bank's secret, which no client knows. ``stores``: what is drawn stays, also
    with another share; a fork has it from its session. What began before there was a share is never drawn.
    """
    if (stored := database.value(_CONTROL, session=session_id)) is not None or not share:
        return bool(stored)
    if database.value(_BEGUN, session=session_id):
        return False
    digest = hmac.digest(database.secret(), session_id.encode("utf-8", "surrogatepass"), "sha256")
    drawn = int.from_bytes(digest[:8]) < share * 2**64
    if not stores:
        return drawn
    with database.write() as c:  # the first one's stays
        c.execute(SET_SESSION.where(_s.control.is_(None)).values(control=drawn), {"session": session_id})
    return bool(database.value(_CONTROL, session=session_id))


@dataclass(frozen=True, slots=True)
class DollarRatio:
    """Mean dollars with memory and without, their ``share``, and the ends of its 95% confidence interval."""

    memory: float
    control: float
    share: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_change(self.share)} (95% interval: {_change(self.low)} to {_change(self.high)})"


def _change(share: float) -> str:
    return f"{abs(1 - share):.0%} {'more' if share > 1 else 'less'}"


@dataclass(frozen=True, slots=True)
class SessionDollars:
    """The cost of a drawn session and its forks, with the full histories (estimated), and its priced calls."""

    paid: float
    full: float
    calls: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sessions that were drawn to have memory and to go without it, by what they cost; ``compared``: in words.

    ``needed``: sessions of the smaller group at which the saving that memory estimates would be seen in four
    measurements of five. ``per_session`` and ``per_call`` are None below LEAST.
    """

    memory: int
    control: int
    needed: int
    per_session: DollarRatio | None
    per_call: DollarRatio | None
    compared: str


def compared(memory: Sequence[SessionDollars], control: Sequence[SessionDollars]) -> Comparison:
    """The ratio of the groups' means, with an interval on its logarithm by Student's t of the smaller group.

    Sessions are what is drawn, so that variances are of sessions. Dollars a call are a ratio of sums, by the delta
    method (Deng, Knoblich, Lu, KDD 2018, arXiv:1803.06336); residuals are those of a jackknife (MacKinnon, White,
    J. Econometrics 29, 1985), since few sessions cost much. As chance draws the groups, both are taken to spread
    (beside their means) as the one that spreads more, or as those with memory would without it (estimated): a small
    group often has none of the few.
    """
    groups = memory, control, [SessionDollars(s.full, s.full, s.calls) for s in memory]
    counts = len(memory), len(control)
    needed, fewest = LEAST, min(counts)
    if fewest:
        saved = sum(s.paid for s in memory) / (sum(s.full for s in memory) or 1.0)
        effect = max(abs(math.log(saved or 1.0)), -math.log(1 - _SMALLEST))
        spread = max(_mean(group)[1] for group in groups) * (1 + fewest / max(counts))
        needed = max(LEAST, math.ceil((_POWER / effect) ** 2 * spread))
    each, call = (_ratio(*groups, a_call=a_call) for a_call in (False, True))
    told = f"{counts[0]:,} sessions with memory, {counts[1]:,} without"
    if fewest < needed:
        group = "without" if counts[1] == fewest else "with"
        told = f"{fewest} of about {needed:,} sessions {group} memory needed"
    elif each is None:
        told = f"nothing was paid in one of the groups: {told}"
    if each is not None:
        means = f"${each.memory:.3g} a session with memory, ${each.control:.3g} without"
        told = f"{means}: {each}; a call: {call}; {told}"
    return Comparison(*counts, needed, each, call, told)


def _mean(group: Sequence[SessionDollars], *, a_call: bool = False) -> tuple[float, float]:
    """The mean dollars of a session (or call), and the variance between sessions divided by the mean squared."""
    paid = np.array([s.paid for s in group])
    units = np.array([s.calls if a_call else 1 for s in group], dtype=float)
    mean = float(paid.sum() / units.sum())
    residuals = (paid - mean * units) / (1 - np.minimum(units / units.sum(), 0.5))
    return mean, float(np.mean((residuals / (float(paid.mean()) or 1.0)) ** 2))


def _ratio(*groups: Sequence[SessionDollars], a_call: bool) -> DollarRatio | None:
    if min(map(len, groups)) < LEAST:
        return None
    (memory, treated), (control, other), (_, full) = (_mean(group, a_call=a_call) for group in groups)
    if not memory or not control:
        return None
    error = math.sqrt(max(treated, other, full) * sum(1 / len(group) for group in groups[:2]))
    half = _t975(min(map(len, groups)) - 1) * error
    return DollarRatio(
        memory, control, memory / control, *(memory / control * math.exp(h) for h in (-half, half))
    )


def _t975(freedom: float) -> float:
    """The 97.5% quantile of Student's t (Abramowitz and Stegun 26.7.5; within 0.005 from 10 of freedom on)."""
    z = NormalDist().inv_cdf(0.975)
    terms = z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return sum(term / freedom**n for n, term in enumerate(terms))


def comparison(
    database: Database, prices: Mapping[str, Price], namespace: str | None = ANY, since: float | None = None
) -> Comparison | None:
    """The cost of the drawn sessions of a namespace, or of all, ``since`` a time; None where each has memory."""
    mine = sa.select(_s.session_id, _s.control, _s.forked_from).where(
        _s.control.is_not(None), _s.deleted.is_(None)
    )
    mine = mine if namespace is ANY else mine.where(of_namespace(namespace))
    drawn = {row["session_id"]: row for row in database.rows(mine)}
    if not any(row["control"] for row in drawn.values()):
        return None

    def root(session_id: str) -> str:
        """The drawn session: forks count to it."""
        while (parent := drawn[session_id]["forked_from"]) in drawn:
            session_id = parent
        return session_id

    sums: dict[str, SessionDollars] = {}
    unknown = set[str]()
    for s in usage_sums(database, namespace, "session", since=since):
        price, _ = known_price(prices, s.model or "") or (None, "")
        pair = costs(s.sent, s.full, price, s.billed) if s.reported and s.of in drawn else None
        if pair is None and s.reported and s.of in drawn:
            unknown.add(root(str(s.of)))
        if pair is not None:
            old = sums.get(key := root(str(s.of)), SessionDollars(0.0, 0.0, 0))
            # without memory's tools, which a session that no client names has in either group
            paid = pair[1] if drawn[key]["control"] else pair[0]
            sums[key] = SessionDollars(old.paid + paid, old.full + pair[1], old.calls + s.reported)
    groups = ([v for k, v in sums.items() if bool(drawn[k]["control"]) is c] for c in (False, True))
    result, left = compared(*groups), len(unknown - sums.keys())
    lacking = f"; the price of {left:,} more is not known" if left else ""
    return replace(result, compared=f"{result.compared}{lacking}")
