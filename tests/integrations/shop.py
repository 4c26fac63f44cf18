"""A task of 25 steps for agents of any framework, in two shops at once: its model, its tools, and what must hold."""

from __future__ import annotations

import json
import random
import re
import threading
from collections import defaultdict
from typing import Any

from memory_bank.testing import Reply, ScriptedServer, calls, say

SYSTEM = "You check the orders of a shop."
STEPS = 25
PARALLEL = 5  # of so many steps one makes two calls
SHOPS = ("ash", "elm")
MARK = re.compile(r"<(ash|elm)/(\d+)>")


def task(shop: str) -> str:
    return f"Check every order of the shop {shop} and its parcel, then report."


def get_order(shop: str, number: int) -> str:
    """An order with its lines.

    Args:
        shop: the shop's name.
        number: the order's number.
    """
    return _output("order", shop, number)


def get_parcel(shop: str, number: int) -> str:
    """Where an order's parcel was seen.

    Args:
        shop: the shop's name.
        number: the order's number.
    """
    return _output("parcel", shop, number)


def _output(what: str, shop: str, number: int) -> str:
    rng = random.Random(f"{what} {shop} {number}")
    lines = [{"sku": f"SKU-{rng.randrange(10**7)}", "count": rng.randrange(9)} for _ in range(180)]
    return json.dumps({what: f"<{shop}/{number}>", "lines": lines})


def sku_of_first(shop: str, line: int) -> str:
    """A value that only the first output holds."""
    return json.loads(get_order(shop, 0))["lines"][line]["sku"]


class Model:
    """The scripted model: it goes on from the latest output, then reads the first record, then answers.

    ``read``: the arguments by which it reads that record.
    """

    def __init__(self, **read: str) -> None:
        self._read = {"path": None, "lines": None, "pattern": None} | (read or {"path": "lines[30]"})
        self.texts: defaultdict[str, list[str]] = defaultdict(list)  # what it was sent, by shop
        self.offered: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, body: dict[str, Any]) -> Reply:
        text = json.dumps(body.get("messages") or body.get("input") or body.get("contents"))
        shop = re.findall(r"order of the shop (ash|elm)", text)[0]
        with self._lock:
            self.texts[shop].append(text)
            self.offered |= set(re.findall(r'"name": "(\w+)"', json.dumps(body.get("tools"))))
        found = re.search(r"output \(.*?(SKU-\d+)", text, re.S)  # the answer of get_record
        if found is not None:
            return say(f"All is well with {found[1]}.")
        step = max((int(number) for _, number in MARK.findall(text)), default=-1) + 1
        if step == STEPS:
            return calls(("get_record", {"record": "#1", **self._read}))
        asked = [("get_order", {"shop": shop, "number": step})]
        if step % PARALLEL == 0:
            asked.append(("get_parcel", {"shop": shop, "number": step}))
        return calls(*asked, content=f"Step {step}." if step % 3 == 0 else None)


def check(
    server: ScriptedServer, model: Model, *, shops: tuple[str, ...] = SHOPS, tools: bool = True
) -> None:
    """Pairs whole; every task in one session, apart from the other; contexts shrink; memory tools answered."""
    assert server.refused == []
    assert not tools or {"get_record"} <= model.offered
    assert set(model.texts) == set(shops)
    full = sum(len(get_order(shops[0], n)) for n in range(STEPS))
    for shop, texts in model.texts.items():
        assert len(texts) == STEPS + 2
        assert {name for text in texts for name in re.findall(r"\b(ash|elm)\b", text)} == {shop}
        sizes = [len(text) for text in texts]
        assert max(sizes) < 0.8 * full
        assert any("<retrieved-data seal=" in text or "… #" in text for text in texts)


def answer(shop: str, line: int = 30) -> str:
    return f"All is well with {sku_of_first(shop, line)}."
