"""A shop of random orders and the run of an agent that refunds some of them, by tools of its own or by one shell."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chats import call, result, system, user

TASK = (
    "Some customers paid twice. For every order of today: look at the order, its payment and its customer, refund "
    "the second charge, book the parcel's way back, and write a letter to the customer at the end."
)


@dataclass
class Turn:
    """A call with its result, and the ids in its arguments that only earlier outputs tell."""

    tool: str
    arguments: dict[str, Any]
    output: str
    needed: list[str] = field(default_factory=list)


def shop_run(seed: int, orders: int = 12, *, shell: bool = False) -> Iterator[Turn]:
    """Yield the calls of a run that looks at every order first, then acts, then writes to every customer.

    ``shell``: every call is a command of one tool, which answers in lines of text.
    """
    r = random.Random(seed)

    def new(prefix: str) -> str:
        return f"{prefix}-{r.randrange(10**5, 10**6)}"

    def turn(tool: str, arguments: dict[str, str], found: dict[str, Any], *needed: str) -> Turn:
        if not shell:
            return Turn(tool, arguments, json.dumps(found), list(needed))
        command = " ".join(["shop", tool.replace("_", "-"), *(f"--{k} {v}" for k, v in arguments.items())])
        text = "".join(f"{k.replace('_', ' ').capitalize()}: {v}\n" for k, v in found.items())
        return Turn("bash", {"command": command}, text, list(needed))

    about = [
        {name: new(name[:3].upper()) for name in ("order", "payment", "customer", "parcel")}
        for _ in range(orders)
    ]
    listed = {"count": orders, "orders": ", ".join(o["order"] for o in about)}
    yield turn("list_orders", {"day": "today"}, listed)
    for o in about:
        details = {"payment_id": o["payment"], "customer_id": o["customer"]}
        order = {
            "order_id": o["order"],
            "state": "paid twice",
            **details,
            "remarks": "left at the door " * 12,
        }
        yield turn("get_order", {"order_id": o["order"]}, order, o["order"])
        o["charge"] = new("CHG")
        payment = {"amount": r.randrange(10, 900), "second_charge_id": o["charge"], "parcel_id": o["parcel"]}
        yield turn(
            "get_payment", {"payment_id": o["payment"]}, payment | {"log": "authorised, " * 20}, o["payment"]
        )
    for o in about:
        o["refund"], o["label"] = new("RFD"), new("LBL")
        yield turn(
            "issue_refund",
            {"charge_id": o["charge"]},
            {"refund_id": o["refund"], "state": "done"},
            o["charge"],
        )
        back = {"label_id": o["label"], "state": "booked"}
        yield turn("book_return", {"parcel_id": o["parcel"]}, back, o["parcel"])
    for o in about:
        words = {"customer_id": o["customer"], "refund_id": o["refund"], "label_id": o["label"]}
        yield turn("send_letter", words, {"letter_id": new("LET"), "state": "sent"}, *words.values())


def messages_of(turns: list[Turn]) -> list[dict[str, Any]]:
    """The chat of a run."""
    messages = [system(), user(TASK)]
    for n, t in enumerate(turns):
        messages += [call((f"call-{n}", t.tool, t.arguments)), result(f"call-{n}", t.output)]
    return messages
