"""What a person decided about a record: it is pinned, excluded from contexts, or forgotten."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("records", sa.Column("mark", sa.String(16)))


def downgrade() -> None:
    raise NotImplementedError("facts are never thrown away by a downgrade")
