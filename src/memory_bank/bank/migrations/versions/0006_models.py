"""The evidence model that was fitted to a namespace's own sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("fitted", sa.Float(53), nullable=False),
        sa.Column("sessions", sa.Integer, nullable=False),
        sa.Column("model", sa.LargeBinary),
        sa.PrimaryKeyConstraint("namespace", name="pk_models"),
    )


def downgrade() -> None:
    raise NotImplementedError("facts are never thrown away by a downgrade")
