"""Records, insights, sessions and the bank's own facts."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import UserDefinedType

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


class _Vector(UserDefinedType[Any]):
    def get_col_spec(self, **_: Any) -> str:
        return "vector"


_serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_embedding = sa.LargeBinary().with_variant(_Vector(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "bank",
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_bank"),
    )
    op.create_table(
        "sessions",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("task", sa.LargeBinary),
        sa.PrimaryKeyConstraint("session_id", name="pk_sessions"),
    )
    op.create_table(
        "records",
        sa.Column("seq", _serial, nullable=False, autoincrement=True),
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("trace_id", sa.String(64), nullable=False),
        sa.Column("step_id", sa.Integer, nullable=False),
        sa.Column("call_id", sa.LargeBinary),
        sa.Column("tool_name", sa.LargeBinary, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("input_verbatim", sa.Boolean, nullable=False),
        sa.Column("output", sa.LargeBinary, nullable=False),
        sa.Column("output_verbatim", sa.Boolean, nullable=False),
        sa.Column("timestamp", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_records"),
        sa.UniqueConstraint("trace_id", "session_id", name="uq_records_trace_id_session_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_records_session_id_seq", "records", ["session_id", "seq"])
    op.create_table(
        "insights",
        sa.Column("seq", _serial, nullable=False, autoincrement=True),
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("trace_id", sa.String(64), nullable=False),
        sa.Column("summary", sa.LargeBinary, nullable=False),
        sa.Column("embedding", _embedding, nullable=False),
        sa.Column("source", sa.String(255), nullable=False),
        sa.Column("redo", sa.LargeBinary),
        sa.PrimaryKeyConstraint("seq", name="pk_insights"),
        sa.UniqueConstraint("trace_id", "session_id", name="uq_insights_trace_id_session_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_insights_session_id_seq", "insights", ["session_id", "seq"])


def downgrade() -> None:
    raise NotImplementedError("facts are never thrown away by a downgrade")
