"""An index for the jobs that ended lately."""

from alembic import op

revision = "r0008"
down_revision = "r0007"


def upgrade() -> None:
    """Replace the index of jobs to delete, which is its beginning."""
    op.drop_index(op.f("ix_jobs_deleted_at"), table_name="jobs")
    op.create_index(op.f("ix_jobs_deleted_at_ended_at"), "jobs", ["deleted_at", "ended_at"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_deleted_at_ended_at"), table_name="jobs")
    op.create_index(op.f("ix_jobs_deleted_at"), "jobs", ["deleted_at"], unique=False)
