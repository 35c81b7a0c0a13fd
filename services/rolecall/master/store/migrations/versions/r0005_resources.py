"""The column for the resources of a job's workers."""

import sqlalchemy as sa
from alembic import op

revision = "r0005"
down_revision = "r0004"


def upgrade() -> None:
    """Add the column. Placement decides about the workers of earlier jobs, as before."""
    op.add_column("jobs", sa.Column("resources", sa.Text(), nullable=False, server_default="{}"))


def downgrade() -> None:
    op.drop_column("jobs", "resources")
