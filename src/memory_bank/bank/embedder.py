"""The embedder of a bank, one for all its sessions: written down with the first insight, then kept to."""

from __future__ import annotations

import sqlalchemy as sa

from memory_bank.bank.database import Database
from memory_bank.bank.schema import bank, insights
from memory_bank.errors import EmbedderMismatchError

KEYS = ("embedder", "dimension")
_BANK = sa.select(bank.c.key, bank.c.value)
_ANY = sa.select(insights.c.seq).limit(1)
_FORGET = sa.delete(bank).where(bank.c.key.in_(KEYS))
_REMEMBER = sa.insert(bank)


def check_embedder(database: Database, name: str, dimension: int | None) -> None:
    """Raise EmbedderMismatchError when the bank holds embeddings of another embedder."""
    with database.read() as c:
        is_known(c, database.name, name, dimension)


def is_known(c: sa.Connection, where: str, name: str, dimension: int | None) -> bool:
    """Whether the bank was built with this very embedder; False where nothing is embedded yet.

    Raises EmbedderMismatchError where it was another one.
    """
    known = dict(c.execute(_BANK).all())
    old_name, old_dimension = known.get("embedder"), known.get("dimension")
    if old_name is None or (old_name == name and (dimension is None or old_dimension == str(dimension))):
        return old_name is not None and dimension is not None
    if c.execute(_ANY).first() is None:
        return False  # nothing embedded yet: nothing to mix
    raise mismatch(where, old_name, old_dimension, name, dimension)


def mismatch(
    where: str, old_name: str, old_dimension: int | str | None, name: str, dimension: int | None
) -> EmbedderMismatchError:
    """The error that names both embedders and the way out."""
    ours = f"{name} ({dimension} dimensions)" if dimension else name
    return EmbedderMismatchError(
        f"{where} holds embeddings of {old_name} ({old_dimension} dimensions), not of {ours}: open it with "
        f"{old_name}, or run  memory-bank re-embed --db {where} --embedding-model {name}"
    )


def bind(c: sa.Connection, database: Database, name: str, dimension: int) -> None:
    """Within a write, make sure that the bank's embedder is this one and stays it until the write has ended.

    Raises EmbedderMismatchError.
    """
    known = is_known(c, database.name, name, dimension)
    if database.lock_bank(c, exclusive=not known):  # another may have been written down before the lock
        held, known = known, is_known(c, database.name, name, dimension)
        if held and not known:  # the bank was emptied just now
            database.lock_bank(c, exclusive=True)
            known = is_known(c, database.name, name, dimension)
    if not known:
        remember(c, (name, dimension))


def remember(c: sa.Connection, embedder: tuple[str, int] | None) -> None:
    """Within a write that holds the bank, write down its embedder anew; None: it has none."""
    c.execute(_FORGET)
    if embedder is not None:
        c.execute(_REMEMBER, [{"key": k, "value": str(v)} for k, v in zip(KEYS, embedder, strict=True)])
