"""Indexes for the live jobs, and for sums and counts of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "r0011"
down_revision = "r0010"


def upgrade() -> None:
    """Create partial indexes of the live jobs, and add columns to others so that rows are not fetched."""
    live = sa.text("state NOT IN ('succeeded', 'failed', 'cancelled')")
    op.create_index("ix_jobs_live", "jobs", ["sequence"], sqlite_where=live, postgresql_where=live)
    op.create_index("ix_jobs_live_owner", "jobs", ["owner", "state"], sqlite_where=live, postgresql_where=live)
    op.drop_index(op.f("ix_jobs_owner_bytes"), table_name="jobs")
    op.create_index(op.f("ix_jobs_owner_id_bytes"), "jobs", ["owner", "id", "bytes"], unique=False)
    op.drop_index(op.f("ix_jobs_deleted_at_ended_at"), table_name="jobs")
    columns = ["deleted_at", "ended_at", "state"]
    op.create_index(op.f("ix_jobs_deleted_at_ended_at_state"), "jobs", columns, unique=False)
    op.create_index(op.f("ix_checkpoints_job_bytes"), "checkpoints", ["job", "bytes"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_checkpoints_job_bytes"), table_name="checkpoints")
    op.drop_index(op.f("ix_jobs_deleted_at_ended_at_state"), table_name="jobs")
    op.create_index(op.f("ix_jobs_deleted_at_ended_at"), "jobs", ["deleted_at", "ended_at"], unique=False)
    op.drop_index(op.f("ix_jobs_owner_id_bytes"), table_name="jobs")
    op.create_index(op.f("ix_jobs_owner_bytes"), "jobs", ["owner", "bytes"], unique=False)
    op.drop_index("ix_jobs_live_owner", table_name="jobs")
    op.drop_index("ix_jobs_live", table_name="jobs")
