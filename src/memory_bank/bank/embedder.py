"""The embedder of a bank: one for all sessions, stored with the first insight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from memory_bank.bank.database import Database
from memory_bank.bank.schema import bank, in_parts, insights, sessions
from memory_bank.errors import EmbedderMismatchError, EmbeddingError, StorageError
from memory_bank.faults import fault_point
from memory_bank.models.lexical import LexicalEmbedder
from memory_bank.ports import Embedder
from memory_bank.vectors import embedder_name, encode_documents

_KEYS = ("embedder", "dimension")
_BATCH = 256
_BANK = sa.select(bank.c.key, bank.c.value).where(bank.c.key.in_(_KEYS))


def embedder_of(c: Connection) -> tuple[str, int] | None:
    """Name and dimension of the embedder of a bank; None before the first insight, or if it is invalid."""
    values = dict(c.execute(_BANK).all())
    name, dimension = values.get("embedder"), values.get("dimension") or ""
    return (name, int(dimension)) if name and dimension.isascii() and dimension.isdecimal() else None


def dimension_of(embedding: bytes) -> int:
    """The dimension of a stored embedding; an embedder of words has one, though its vectors are not stored."""
    return len(embedding) // 4 or LexicalEmbedder.dimension


def bank_embedder(database: Database) -> tuple[str, int] | None:
    """``embedder_of`` in a transaction of its own."""
    with database.read() as c:
        return embedder_of(c)


def check_embedder(database: Database, name: str, dimension: int | None) -> None:
    """Raise EmbedderMismatchError if the bank has embeddings of another embedder."""
    with database.read() as c:
        is_known(c, database, name, dimension)


def is_known(c: Connection, database: Database, name: str, dimension: int | None) -> bool:
    """Return whether the bank has this embedder; it may have none yet. Raises EmbedderMismatchError for another."""
    values = dict(database.fetch(c, _BANK))
    old_name, old_dimension = values.get("embedder"), values.get("dimension")
    if old_name is None or (old_name == name and (dimension is None or old_dimension == str(dimension))):
        return old_name is not None and dimension is not None
    if c.execute(sa.select(insights.c.seq).limit(1)).first() is None:
        return False
    raise mismatch(database.name, old_name, old_dimension, name, dimension)


def mismatch(
    where: str, old_name: str, old_dimension: int | str | None, name: str, dimension: int | None
) -> EmbedderMismatchError:
    """The error that names both embedders and says how to re-embed."""
    ours = f"{name} ({dimension} dimensions)" if dimension else name
    return EmbedderMismatchError(
        f"{where} holds embeddings of {old_name} ({old_dimension} dimensions), not of {ours}: open it with "
        f"{old_name}, or run  memory-bank bank re-embed --db {where} --embedding-model {name}"
    )


def bind(c: Connection, database: Database, name: str, dimension: int) -> None:
    """Within a write, make this embedder the bank's until the write's end. Raises EmbedderMismatchError."""
    has_it = is_known(c, database, name, dimension)
    if database.lock_bank(c, exclusive=not has_it):  # another process may have stored one before the lock
        was_known, has_it = has_it, is_known(c, database, name, dimension)
        if was_known and not has_it:  # the bank was emptied meanwhile
            database.lock_bank(c, exclusive=True)
            has_it = is_known(c, database, name, dimension)
    if not has_it:
        remember(c, (name, dimension))


def remember(c: Connection, embedder: tuple[str, int] | None) -> None:
    """Within a write that holds the bank, store its embedder; None deletes it."""
    c.execute(sa.delete(bank).where(bank.c.key.in_(_KEYS)))
    if embedder is not None:
        rows = [{"key": k, "value": str(v)} for k, v in zip(_KEYS, embedder, strict=True)]
        c.execute(sa.insert(bank), rows)


def re_embed(database: Database, model: Embedder, progress: Callable[[int, int], None] | None = None) -> int:
    """Embed every summary of a bank again, make ``model`` its embedder, and return the number of summaries.

    All or nothing: the vectors are computed first and written in one transaction. ``progress`` is called with
    the number of computed vectors and of all. Raises StorageError if the bank was written to meanwhile,
    EmbeddingError if the embedder fails.
    """
    with database.read() as c:
        summaries = c.execute(sa.select(insights.c.seq, insights.c.summary).order_by(insights.c.seq)).all()
    vectors, dimension = embed_all(model, [summary for _, summary in summaries], progress)
    with database.write() as c:
        database.lock_bank(c, exclusive=True)
        database.lock_session(c, None)
        if set(c.execute(sa.select(insights.c.seq)).scalars()) != {seq for seq, _ in summaries}:
            raise StorageError(
                f"{database.name}: the bank was written to during re-embedding, nothing was changed: "
                "stop its agents and run it again."
            )
        if vectors:
            change = sa.update(insights).where(insights.c.seq == sa.bindparam("row"))
            change = change.values(embedding=sa.bindparam("vector"))
            pairs = zip(summaries, vectors, strict=True)
            c.execute(change, [{"row": seq, "vector": vector} for (seq, _), vector in pairs])
        remember(c, (embedder_name(model), dimension) if vectors else None)
        c.execute(sa.update(sessions).values(generation=sessions.c.generation + 1))
        fault_point("re_embed.executed")
    return len(vectors)


def embed_all(
    model: Embedder, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
) -> tuple[list[bytes], int]:
    """The vectors of texts as they are stored, and their dimension. Raises EmbeddingError."""
    vectors: list[bytes] = []
    dimension = 0
    for part in in_parts(texts, _BATCH):
        encoded = encode_documents(model, part)
        if vectors and encoded.shape[1] != dimension:
            raise EmbeddingError(
                f"the embedder {embedder_name(model)!r} gave {dimension} dimensions, then "
                f"{encoded.shape[1]}: nothing was changed, use another one."
            )
        dimension = encoded.shape[1]
        is_stored = embedder_name(model) != LexicalEmbedder.name
        vectors += [vector.astype("<f4").tobytes() if is_stored else b"" for vector in encoded]
        if progress is not None:
            progress(len(vectors), len(texts))
    return vectors, dimension
