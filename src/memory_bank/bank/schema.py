"""The tables of a bank. A change here goes with a new numbered migration; old ones are never edited."""

from __future__ import annotations

from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.types import LargeBinary, TypeDecorator, TypeEngine, UserDefinedType

HEAD = "0003"  # the revision of the newest migration


class ExactText(TypeDecorator[str]):
    """Text kept to the letter as bytes: lone surrogates and NUL, which SQL text refuses, come back."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002  the base class asks
        return None if value is None else value.encode("utf-8", "surrogatepass")

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else bytes(value).decode("utf-8", "surrogatepass")


class Vector(UserDefinedType[str]):
    """pgvector's type, of any dimension, as its text form: ``[1,0.5]``."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "vector"


class Embedding(TypeDecorator[bytes]):
    """float32, little-endian: bytes in SQLite, a ``vector`` in PostgreSQL; no bit is lost on the way."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Vector() if dialect.name == "postgresql" else LargeBinary())

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> Any:
        if value is None or dialect.name != "postgresql":
            return value
        return f"[{','.join(map(repr, np.frombuffer(value, dtype='<f4').tolist()))}]"

    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None or dialect.name != "postgresql":
            return None if value is None else bytes(value)
        return np.array(value[1:-1].split(","), dtype="<f4").tobytes()


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# Numbers are never given twice (AUTOINCREMENT): a row that replaces the newest one must look new to others.
_Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")

bank = sa.Table(  # facts about the bank as a whole, such as its embedder
    "bank",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", ExactText, nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),  # grows with every reset, so that others notice
    sa.Column("task", ExactText),  # what the user asked for: the Observer is told
    sa.Column("agent_id", sa.String(255)),  # whose session it is, where searches may cross sessions
    sa.Column("namespace", sa.String(64)),  # whose it is in a service: no key of another one sees it
    sa.Column("head", sa.String(64)),  # the digest of its conversation up to the end of the last interaction
    sa.Column("head_calls", ExactText),  # JSON: digests of calls that show an edited one to be its own
    sa.Column("forked_from", sa.String(255)),  # the session it was cut off from
    sa.Column("deleted", sa.Float(53)),  # when a service was told to delete it; what comes later revives it
    sa.Index("ix_sessions_agent_id", "agent_id"),
    sa.Index("ix_sessions_namespace", "namespace", "created"),
)

records = sa.Table(
    "records",
    metadata,
    sa.Column("seq", _Serial, primary_key=True, autoincrement=True),
    sa.Column("session_id", sa.String(255), nullable=False),
    sa.Column("trace_id", sa.String(64), nullable=False),
    sa.Column("step_id", sa.Integer, nullable=False),
    sa.Column("call_id", ExactText),
    sa.Column("tool_name", ExactText, nullable=False),
    sa.Column("input", ExactText, nullable=False),
    sa.Column("input_verbatim", sa.Boolean, nullable=False),  # the text as it came, or the value as JSON
    sa.Column("output", ExactText, nullable=False),
    sa.Column("output_verbatim", sa.Boolean, nullable=False),
    sa.Column("timestamp", sa.Float, nullable=False),
    sa.UniqueConstraint("trace_id", "session_id"),
    sa.Index("ix_records_session_id_seq", "session_id", "seq"),
    sqlite_autoincrement=True,
)

insights = sa.Table(
    "insights",
    metadata,
    sa.Column("seq", _Serial, primary_key=True, autoincrement=True),
    sa.Column("session_id", sa.String(255), nullable=False),
    sa.Column("trace_id", sa.String(64), nullable=False),
    sa.Column("summary", ExactText, nullable=False),
    sa.Column("embedding", Embedding, nullable=False),  # of unit length
    sa.Column("source", sa.String(255), nullable=False),
    sa.Column("redo", ExactText),  # why the insight is to be made again
    sa.UniqueConstraint("trace_id", "session_id"),
    sa.Index("ix_insights_session_id_seq", "session_id", "seq"),
    sqlite_autoincrement=True,
)

jobs = sa.Table(  # records that a language model is to summarise; a row goes when its insight is there
    "jobs",
    metadata,
    sa.Column("seq", _Serial, primary_key=True, autoincrement=True),
    sa.Column("session_id", sa.String(255), nullable=False),
    sa.Column("trace_id", sa.String(64), nullable=False),
    sa.Column("created", sa.Float(53), nullable=False),  # times are Unix seconds
    sa.Column("due", sa.Float(53), nullable=False),  # not to be tried before
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("owner", sa.String(64)),  # who holds the lease, from `leased` until `expires`
    sa.Column("leased", sa.Float(53)),
    sa.Column("expires", sa.Float(53)),
    sa.Column("error", ExactText),  # why the last attempt failed
    sa.UniqueConstraint("trace_id", "session_id"),
    sa.Index("ix_jobs_session_id_seq", "session_id", "seq"),
    sa.Index("ix_jobs_due", "due"),
    sqlite_autoincrement=True,
)

spending = sa.Table(  # what the Observer's model cost, by session, day (UTC) and model
    "spending",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("model", sa.String(255), primary_key=True),
    sa.Column("calls", sa.Integer, nullable=False),
    sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
    sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    sa.Column("cost", sa.Float(53), nullable=False),  # in the currency of the configured prices
    sa.Index("ix_spending_day", "day"),
)

api_keys = sa.Table(  # who may use a service; rows stay when a key is revoked
    "api_keys",
    metadata,
    sa.Column("key_id", sa.String(32), primary_key=True),
    sa.Column("name", ExactText, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),  # SHA-256 of the key, which is nowhere stored
    sa.Column("namespace", sa.String(64)),  # None: the sessions of a service without keys
    sa.Column("operator", sa.Boolean, nullable=False),  # may see how the service as a whole does
    sa.Column("created", sa.Float(53), nullable=False),
    sa.Column("revoked", sa.Float(53)),
    sa.Column("requests_per_minute", sa.Integer),  # None: as the service's settings say
    sa.Column("max_body_bytes", sa.BigInteger),
    sa.UniqueConstraint("digest"),
)

lineage = sa.Table(  # which conversations, known by digests, belong to which session; the newest are kept
    "lineage",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),  # of all messages of a request, or of a call's id
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),  # counts the session's rows
    sa.Column("before", sa.BigInteger, nullable=False),  # the newest record of the session before it came
    sa.Index("ix_lineage_session_id_number", "session_id", "number"),
)

steps = sa.Table(  # what a session's contexts cost and were made of; the manifests of older steps go
    "steps",
    metadata,
    sa.Column("session_id", sa.String(255), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("created", sa.Float(53), nullable=False),
    sa.Column("full_tokens", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
    sa.Column("messages", sa.Integer, nullable=False),  # of the full history
    sa.Column("records", sa.Integer, nullable=False),  # stored by then
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("strategy", sa.String(255), nullable=False),
    sa.Column("milliseconds", sa.Float(53), nullable=False),
    sa.Column("manifest", sa.LargeBinary),  # zlib, JSON
)
