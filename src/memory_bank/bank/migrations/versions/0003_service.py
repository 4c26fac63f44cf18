"""What a service needs: keys and namespaces, whose conversation a request goes on with, steps to look at."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("namespace", sa.String(64)))
    op.add_column("sessions", sa.Column("head", sa.String(64)))
    op.add_column("sessions", sa.Column("head_calls", sa.LargeBinary))
    op.add_column("sessions", sa.Column("forked_from", sa.String(255)))
    op.add_column("sessions", sa.Column("deleted", sa.Float(53)))
    op.create_index("ix_sessions_namespace", "sessions", ["namespace", "created"])
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(32), nullable=False),
        sa.Column("name", sa.LargeBinary, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("namespace", sa.String(64)),
        sa.Column("operator", sa.Boolean, nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("revoked", sa.Float(53)),
        sa.Column("requests_per_minute", sa.Integer),
        sa.Column("max_body_bytes", sa.BigInteger),
        sa.PrimaryKeyConstraint("key_id", name="pk_api_keys"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
    )
    op.create_table(
        "lineage",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("before", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("digest", "session_id", name="pk_lineage"),
    )
    op.create_index("ix_lineage_session_id_number", "lineage", ["session_id", "number"])
    op.create_table(
        "steps",
        sa.Column("session_id", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("created", sa.Float(53), nullable=False),
        sa.Column("full_tokens", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.Column("messages", sa.Integer, nullable=False),
        sa.Column("records", sa.Integer, nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("strategy", sa.String(255), nullable=False),
        sa.Column("milliseconds", sa.Float(53), nullable=False),
        sa.Column("manifest", sa.LargeBinary),
        sa.PrimaryKeyConstraint("session_id", "number", name="pk_steps"),
    )


def downgrade() -> None:
    raise NotImplementedError("facts are never thrown away by a downgrade")
