"""The size of a job's request, which counts for the storage limit of its owner."""

import sqlalchemy as sa
from alembic import op

revision = "r0009"
down_revision = "r0008"


def upgrade() -> None:
    """Add the column with an index for the sum. Existing jobs, and those of older masters, count as empty."""
    op.add_column("jobs", sa.Column("bytes", sa.Integer(), server_default="0", nullable=False))
    op.create_index(op.f("ix_jobs_owner_bytes"), "jobs", ["owner", "bytes"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_owner_bytes"), table_name="jobs")
    op.drop_column("jobs", "bytes")
