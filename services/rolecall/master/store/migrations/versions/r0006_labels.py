"""The labels of jobs, and an index to list the jobs of a workload."""

import sqlalchemy as sa
from alembic import op

revision = "r0006"
down_revision = "r0005"


def upgrade() -> None:
    """Create the table and the indexes. Earlier jobs have no labels."""
    op.create_table(
        "labels",
        sa.Column("job", sa.String(length=200), nullable=False),
        sa.Column("name", sa.String(length=317), nullable=False),
        sa.Column("value", sa.String(length=63), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_labels_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "name", name=op.f("pk_labels")),
    )
    op.create_index(op.f("ix_labels_name_value"), "labels", ["name", "value"], unique=False)
    op.create_index(op.f("ix_jobs_workload_sequence"), "jobs", ["workload", "sequence"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_workload_sequence"), table_name="jobs")
    op.drop_table("labels")
