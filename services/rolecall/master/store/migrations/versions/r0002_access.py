"""Tokens, the signing key, the audit log; jobs and idempotency keys have an owner, checkpoints a size."""

import json

import sqlalchemy as sa
from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    """Make the tables; what is there already belongs to the built-in token `admin`."""
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("max_queued", sa.Integer(), nullable=True),
        sa.Column("max_slots", sa.Integer(), nullable=True),
        sa.Column("max_stored_bytes", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.String(length=80), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_tokens")),
    )
    op.create_table(
        "token_secrets",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("token", sa.String(length=80), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["token"], ["tokens.name"], name=op.f("fk_token_secrets_token"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_token_secrets")),
    )
    op.create_index(op.f("ix_token_secrets_token"), "token_secrets", ["token"], unique=False)
    op.create_table(
        "signing_key",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.String(length=64), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_signing_key_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signing_key")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("token", sa.String(length=80), nullable=True),
        sa.Column("address", sa.String(length=80), nullable=False),
        sa.Column("action", sa.String(length=200), nullable=False),
        sa.Column("target", sa.String(length=400), nullable=False),
        sa.Column("outcome", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.add_column("jobs", sa.Column("owner", sa.String(length=80), nullable=False, server_default="admin"))
    op.create_index(op.f("ix_jobs_owner_sequence"), "jobs", ["owner", "sequence"], unique=False)
    with op.batch_alter_table("idempotency") as table:
        table.add_column(sa.Column("owner", sa.String(length=80), nullable=False, server_default="admin"))
        table.drop_constraint("pk_idempotency", type_="primary")
        table.create_primary_key("pk_idempotency", ["owner", "key"])
    op.add_column("checkpoints", sa.Column("bytes", sa.BigInteger(), nullable=False, server_default="0"))
    _measure_checkpoints()


def _measure_checkpoints() -> None:
    connection = op.get_bind()
    columns = {
        "job": sa.String,
        "attempt": sa.Integer,
        "step": sa.BigInteger,
        "manifest": sa.Text,
        "bytes": sa.BigInteger,
    }
    table = sa.table("checkpoints", *(sa.column(name, kind) for name, kind in columns.items()))
    key = (table.c.job, table.c.attempt, table.c.step)
    rows = connection.execute(sa.select(*key, table.c.manifest)).all()
    for job, attempt, step, manifest in rows:
        size = sum(int(part["size"]) for part in json.loads(manifest)["parts"])
        at = (table.c.job == job, table.c.attempt == attempt, table.c.step == step)
        connection.execute(sa.update(table).where(*at).values(bytes=size))


def downgrade() -> None:
    """Remove them. Idempotency keys of owners other than `admin` are forgotten."""
    op.drop_column("checkpoints", "bytes")
    op.execute("DELETE FROM idempotency WHERE owner <> 'admin'")
    with op.batch_alter_table("idempotency") as table:
        table.drop_constraint("pk_idempotency", type_="primary")
        table.create_primary_key("pk_idempotency", ["key"])
        table.drop_column("owner")
    op.drop_index(op.f("ix_jobs_owner_sequence"), "jobs")
    op.drop_column("jobs", "owner")
    for name in ("audit", "signing_key", "token_secrets", "tokens"):
        op.drop_table(name)
