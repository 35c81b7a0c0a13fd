"""The columns for deletion, sweeping and verification, and for nodes that a retry avoids."""

import sqlalchemy as sa
from alembic import op

revision = "r0004"
down_revision = "r0003"

_SEARCHED = {"jobs": "deleted_at", "attempts": "swept", "checkpoints": "verify_at", "idempotency": "created_at"}


def upgrade() -> None:
    """Add the columns, and an index for each that is searched."""
    op.add_column("jobs", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("jobs", sa.Column("avoid", sa.Text(), nullable=True))
    # Attempts of earlier releases count as not swept: the first start deletes what they left.
    op.add_column("attempts", sa.Column("swept", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("checkpoints", sa.Column("verify_at", sa.DateTime(timezone=True), nullable=True))
    for table, column in _SEARCHED.items():
        op.create_index(op.f(f"ix_{table}_{column}"), table, [column], unique=False)


def downgrade() -> None:
    for table, column in _SEARCHED.items():
        op.drop_index(op.f(f"ix_{table}_{column}"), table_name=table)
    op.drop_column("checkpoints", "verify_at")
    op.drop_column("attempts", "swept")
    op.drop_column("jobs", "avoid")
    op.drop_column("jobs", "deleted_at")
