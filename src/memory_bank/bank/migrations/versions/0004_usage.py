"""What the provider reported of each step, what the full history would have used, what broke its prefix cache."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_COUNTS = (
    "input_tokens", "cached_tokens", "written_tokens", "output_tokens",
    "full_input_tokens", "full_cached_tokens", "full_written_tokens",
)  # fmt: skip


def upgrade() -> None:
    op.add_column("steps", sa.Column("changed_at", sa.Integer))
    op.add_column("steps", sa.Column("changed", sa.String(16)))
    op.add_column("steps", sa.Column("model", sa.LargeBinary))
    for name in _COUNTS:
        op.add_column("steps", sa.Column(name, sa.BigInteger))


def downgrade() -> None:
    raise NotImplementedError("facts are never thrown away by a downgrade")
