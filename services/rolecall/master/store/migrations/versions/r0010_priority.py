"""The limit of a token for the priority of its jobs."""

import sqlalchemy as sa
from alembic import op

revision = "r0010"
down_revision = "r0009"


def upgrade() -> None:
    """Add the column. Existing tokens have no limit."""
    op.add_column("tokens", sa.Column("max_priority", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("tokens", "max_priority")
