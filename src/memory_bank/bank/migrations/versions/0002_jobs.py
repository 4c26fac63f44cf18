"""What is to be observed, what the Observer spent, and which agent a session is of."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("sessions", sa.Column("agent_id", sa.String(255)))
    op.create_index("ix_sessions_agent_id", "sessions", ["agent_id"])
    op.create_table(
        "jobs",
        sa.Column("seq", _serial, nullable=False, autoincrement=True),
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("trace_id", sa.String(64), nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("due", sa.Float(53), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("leased", sa.Float(53)),
        sa.Column("expires", sa.Float(53)),
        sa.Column("error", sa.LargeBinary),
        sa.PrimaryKeyConstraint("seq", name="pk_jobs"),
        sa.UniqueConstraint("trace_id", "session_id", name="uq_jobs_trace_id_session_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_session_id_seq", "jobs", ["session_id", "seq"])
    op.create_index("ix_jobs_due", "jobs", ["due"])
    op.create_table(
        "spending",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("calls", sa.Integer, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost", sa.Float(53), nullable=False),
        sa.PrimaryKeyConstraint("session_id", "day", "model", name="pk_spending"),
    )
    op.create_index("ix_spending_day", "spending", ["day"])


def downgrade() -> None:
    raise NotImplementedError("facts are never thrown away by a downgrade")
