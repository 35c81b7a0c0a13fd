"""The current tables. A test compares them with the result of `migrations/`."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    bindparam,
    false,
)

from rolecall.master.store.types import Document, Moment
from rolecall.spec.access import Scopes
from rolecall.spec.job import Progress
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import CheckpointManifest, GangPlan
from rolecall.spec.report import Failure
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

jobs = Table(
    "jobs",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=True),
    Column("id", String(200), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("workload", Text, nullable=False),
    Column("params", Document(dict[str, Any]), nullable=False),
    Column("roles", Document(dict[Role, int]), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("max_restarts", Integer, nullable=False),
    Column("deadline_s", Float),
    Column("state", String(20), nullable=False),
    Column("reason", Text),
    Column("waiting_for", Text),
    Column("attempt", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("progress", Document(Progress), nullable=False),
    Column("result", Document(dict[str, Any])),
    Column("created_at", Moment, nullable=False),
    Column("queued_at", Moment, nullable=False),
    Column("not_before", Moment),
    Column("deadline_at", Moment),
    Column("started_at", Moment),
    Column("ended_at", Moment),
    # The token's name; it may have been revoked since, so that this is no foreign key.
    Column("owner", String(80), nullable=False, server_default="admin"),
    Index(None, "state"),
    Index(None, "owner", "sequence"),
    # The time of the request to delete it. Its files are deleted first, its row last.
    Column("deleted_at", Moment),
    Column("resources", Document(dict[Role, Resources]), nullable=False, server_default="{}"),
    # Nodes that could not read its checkpoint.
    Column("avoid", Document(tuple[str, ...])),
    # With the state, so that the jobs in each state are counted without their rows.
    Index(None, "deleted_at", "ended_at", "state"),
    Index(None, "workload", "sequence"),
    # The URL of a webhook, which can contain secrets.
    Column("notify", Text),
    # The size of its request. Large parameters come before it in the row, so its sum needs the index.
    Column("bytes", Integer, nullable=False, server_default="0"),
    Index(None, "owner", "id", "bytes"),
)
ENDED = tuple(state for state in JobState if state.ended)
LIVE = jobs.c.state.not_in(bindparam("ended", ENDED, expanding=True, literal_execute=True))
"""The condition for jobs that have not ended.

Its values are literals, because a database uses a partial index only for statements that contain the condition of the
index. With another ended state, the partial indexes have to be created again.
"""
# Small, because most jobs have ended. The first has the order in which a master reads the live jobs in pages.
Index("ix_jobs_live", jobs.c.sequence, sqlite_where=LIVE, postgresql_where=LIVE)
Index("ix_jobs_live_owner", jobs.c.owner, jobs.c.state, sqlite_where=LIVE, postgresql_where=LIVE)

labels = Table(
    "labels",
    metadata,
    Column("job", String(200), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(317), primary_key=True),
    Column("value", String(63), nullable=False),
    Index(None, "name", "value"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("job", String(200), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("plan", Document(GangPlan), nullable=False),
    Column("resume_from", Document(CheckpointManifest)),
    Column("state", String(20), nullable=False),
    Column("cause", Text),
    Column("stop", String(20)),
    Column("rendezvous_port", Integer),
    Column("queued_at", Moment, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("first_step_at", Moment),
    Column("ended_at", Moment),
    # Whether its unreferenced blobs are deleted.
    Column("swept", Boolean, nullable=False, default=False, server_default=false()),
    Index(None, "swept"),
)

workers = Table(
    "workers",
    metadata,
    Column("job", String(200), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("role", String(40), nullable=False),
    Column("role_rank", Integer, nullable=False),
    Column("node", String(80), nullable=False),
    Column("state", String(20), nullable=False),
    Column("pid", Integer),
    Column("exit_code", Integer),
    Column("failure", Document(Failure)),
    Column("spawned_at", Moment),
    Column("joined_at", Moment),
    ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"], ondelete="CASCADE"),
    Index(None, "node", "state"),
)

# A worker outlives its node's row, so `workers.node` is a name and not a foreign key.
nodes = Table(
    "nodes",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("spec", Document(NodeSpec), nullable=False),
    Column("started", Text, nullable=False),
    Column("draining", Boolean, nullable=False),
    Column("registered_at", Moment, nullable=False),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("job", String(200), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("keep", Boolean, nullable=False),
    Column("manifest", Document(CheckpointManifest), nullable=False),
    Column("created_at", Moment, nullable=False),
    # The sum of its parts' sizes.
    Column("bytes", BigInteger, nullable=False, server_default="0"),
    # The time of its next verification, after a worker reported damage; otherwise null.
    Column("verify_at", Moment),
    Index(None, "verify_at"),
    # Large manifests come before the bytes in the row, so their sum needs the index.
    Index(None, "job", "bytes"),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("job", String(200), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("blob", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("created_at", Moment, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job", String(200), ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("at", Moment, nullable=False),
    Column("attempt", Integer),
    Column("kind", String(40), nullable=False),
    Column("message", Text, nullable=False),
    # The position in a worker's stream, so that reading it again changes nothing.
    Column("origin", String(300), unique=True),
    Index(None, "job", "id"),
)

# The webhooks that are not delivered yet.
notifications = Table(
    "notifications",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job", String(200), ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("state", String(20), nullable=False),
    Column("at", Moment, nullable=False),
    Column("next_at", Moment, nullable=False),
    Column("tries", Integer, nullable=False),
    Index(None, "next_at"),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("owner", String(80), primary_key=True, server_default="admin"),
    Column("key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("job", String(200), ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("created_at", Moment, nullable=False),
    Index(None, "created_at"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("name", String(80), primary_key=True),
    Column("scopes", Document(Scopes), nullable=False),
    Column("max_queued", Integer),
    Column("max_slots", Integer),
    Column("max_stored_bytes", BigInteger),
    Column("max_priority", Integer),
    Column("created_at", Moment, nullable=False),
    Column("created_by", String(80), nullable=False),
    Column("expires_at", Moment),
    Column("last_used_at", Moment),
)

# A token has two during a rotation. The secrets themselves are not stored.
token_secrets = Table(
    "token_secrets",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("token", String(80), ForeignKey("tokens.name", ondelete="CASCADE"), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment),
    Index(None, "token"),
)

signing_key = Table(
    "signing_key",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", String(64), nullable=False),
    CheckConstraint("id = 1", name="ck_signing_key_one_row"),
)

# It outlives tokens and jobs, so it has no foreign keys.
audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("at", Moment, nullable=False),
    Column("token", String(80)),
    Column("address", String(80), nullable=False),
    Column("action", String(200), nullable=False),
    Column("target", String(400), nullable=False),
    Column("outcome", Integer, nullable=False),
    Column("count", Integer, nullable=False),
    Index(None, "at"),
)

# One row.
leadership = Table(
    "leadership",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("term", BigInteger, nullable=False),
    Column("leader", Text, nullable=False),
    Column("began_at", Moment, nullable=False),
)
