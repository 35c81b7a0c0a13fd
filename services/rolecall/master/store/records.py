"""What the tables hold, as frozen values with the columns' names."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Row

from rolecall.spec.access import Limits, Scope
from rolecall.spec.job import Progress
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import CheckpointManifest, GangPlan
from rolecall.spec.report import Failure
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, StopMode, WorkerState

_R = TypeVar("_R")


def read(kind: type[_R], row: Row[Any], **values: Any) -> _R:
    """A record from a row with its columns; `values` replace those that the database knows only as text."""
    return kind(**(row._asdict() | values))  # pyright: ignore[reportPrivateUsage] - public, as in namedtuple


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job."""

    sequence: int
    id: str
    name: str
    workload: str
    params: dict[str, Any]
    roles: dict[Role, int]
    priority: int
    max_restarts: int
    deadline_s: float | None
    state: JobState
    reason: str | None
    waiting_for: str | None
    attempt: int
    """The number of the current attempt, or of the last; 0 before the first."""
    restarts: int
    """Failed attempts since the submission or the last retry by hand."""
    crashes: int
    """Failed attempts since the newest checkpoint."""
    progress: Progress
    result: dict[str, Any] | None
    created_at: datetime
    queued_at: datetime
    not_before: datetime | None
    """The end of its back-off."""
    deadline_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    owner: str
    """The name of the token that submitted it."""
    deleted_at: datetime | None = None
    """When its deletion was asked for."""
    avoid: tuple[str, ...] | None = None
    """Nodes that reported its checkpoint as damaged: the next attempt goes elsewhere if it fits there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """One try at a job."""

    job: str
    number: int
    plan: GangPlan
    resume_from: CheckpointManifest | None
    state: JobState
    cause: str | None
    stop: StopMode | None
    rendezvous_port: int | None
    queued_at: datetime
    started_at: datetime
    first_step_at: datetime | None
    ended_at: datetime | None
    swept: bool = False
    """Whether what it left in the blob store is deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One worker of an attempt."""

    job: str
    attempt: int
    rank: int
    role: Role
    role_rank: int
    node: str
    state: WorkerState
    pid: int | None
    exit_code: int | None
    failure: Failure | None
    spawned_at: datetime | None
    joined_at: datetime | None

    @property
    def name(self) -> str:
        """E.g. `trainer-0`."""
        return f"{self.role}-{self.role_rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A node that has registered."""

    name: str
    spec: NodeSpec
    started: str
    draining: bool
    registered_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint that the master has recorded."""

    manifest: CheckpointManifest
    created_at: datetime
    verify_at: datetime | None = None
    """When the master verifies it next, because a worker reported damage; None for one that nobody doubts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRecord:
    """A file that a job leaves behind."""

    job: str
    name: str
    attempt: int
    blob: str
    size: int
    sha256: str
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something that happened to a job."""

    id: int
    job: str
    at: datetime
    attempt: int | None
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token without its secrets."""

    name: str
    scopes: frozenset[Scope]
    max_queued: int | None
    max_slots: int | None
    max_stored_bytes: int | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None

    @property
    def limits(self) -> Limits:
        """What its jobs may take."""
        return Limits(**{name: getattr(self, name) for name in Limits.model_fields})


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRecord:
    """A secret of a token, as its digest."""

    digest: str
    token: str
    created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job with its current attempt and that attempt's workers in rank order."""

    job: JobRecord
    attempt: AttemptRecord
    workers: tuple[WorkerRecord, ...]
