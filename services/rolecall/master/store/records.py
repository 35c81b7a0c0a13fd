"""The rows of the tables as frozen values.

Each row is read separately. If this release can't read it (a newer release wrote it, or a disk damaged it), it raises
`UnreadableRow`, and functions that read several rows continue with the others.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Row

from rolecall.logs import about
from rolecall.master.store.types import Unreadable
from rolecall.spec.access import Limits, Scope
from rolecall.spec.errors import RolecallError
from rolecall.spec.job import Progress
from rolecall.spec.node import NodeSpec
from rolecall.spec.plan import CheckpointManifest, GangPlan
from rolecall.spec.report import Failure
from rolecall.spec.resources import Resources
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, StopMode, WorkerState

DETAILED_ATTEMPTS = 20
"""The number of newest attempts of a job that are shown with their workers."""
TRACED_ATTEMPTS = 3
"""The number of newest attempts of a job that keep the tracebacks of their workers."""
_R = TypeVar("_R")
_E = TypeVar("_E", bound=StrEnum)
_LOG = logging.getLogger(__name__)


class UnreadableRow(RolecallError):
    """A row has a value that this release can't read."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"its stored {column} can't be read ({why})")


def read(kind: type[_R], row: Row[Any], names: Sequence[str] = (), **values: Any) -> _R:
    """A record from all columns of a row, or only from those in `names`.

    `values` replace columns that the database stores as plain text. Raises `UnreadableRow` for an unreadable column,
    even if the record doesn't have it.
    """
    found = row._asdict()  # pyright: ignore[reportPrivateUsage] - public, as in namedtuple
    for column, value in found.items():
        if isinstance(value, Unreadable):
            raise UnreadableRow(column, value.why)
    taken = {name: found[name] for name in names} if names else found
    return kind(**(taken | values))


def member(kind: type[_E], row: Row[Any], column: str) -> _E:
    """The enumeration member in `column`. Raises `UnreadableRow`."""
    text = getattr(row, column)
    try:
        return kind(text)
    except ValueError:
        raise UnreadableRow(column, f"{text!r} is none of {', '.join(kind)}") from None


def readable(rows: Iterable[Row[Any]], parse: Callable[[Row[Any]], _R], what: str) -> Iterator[_R]:
    """The readable records of `rows`. Each unreadable one is logged once as `what`."""
    for row in rows:
        try:
            yield parse(row)
        except UnreadableRow as error:
            _log_once(f"{what} {'/'.join(str(value) for value in tuple(row)[:3])}", str(error))


@lru_cache(maxsize=1024)
def _log_once(what: str, why: str) -> None:
    _LOG.error("%s is left out: %s", what, why, extra=about("row_unreadable"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job without large values, for placement and state transitions."""

    sequence: int
    id: str
    workload: str
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
    created_at: datetime
    queued_at: datetime
    not_before: datetime | None
    """The end of its back-off."""
    deadline_at: datetime | None
    started_at: datetime | None
    owner: str
    """The name of the token that submitted it."""
    resources: dict[Role, Resources] = field(default_factory=dict[Role, Resources])
    """The resources of each worker of a role. Placement decides for other roles."""
    avoid: tuple[str, ...] | None = None
    """Nodes that reported its checkpoint as damaged: the next attempt goes elsewhere if it fits there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry(JobSummary):
    """A job in a list for users."""

    name: str
    progress: Progress
    ended_at: datetime | None
    unreadable: str | None = field(default=None, compare=False)
    """The column that this release can't read, with the reason. The column has an empty value here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(JobEntry):
    """A job with all its values."""

    params: dict[str, Any]
    result: dict[str, Any] | None
    notify: str | None = field(default=None, repr=False)
    """The URL of its webhook."""
    deleted_at: datetime | None = None
    """The time of the request to delete it."""
    bytes: int = 0
    """The size of its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """The part of an ended job that the metrics show."""

    id: str
    workload: str
    state: JobState
    reason: str | None
    progress: Progress
    result: dict[str, Any] | None
    created_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """One attempt of a job, without its plan."""

    job: str
    number: int
    state: JobState
    cause: str | None
    stop: StopMode | None
    rendezvous_port: int | None
    queued_at: datetime
    started_at: datetime
    first_step_at: datetime | None
    ended_at: datetime | None
    swept: bool = False
    """True if its unreferenced blobs are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord(AttemptSummary):
    plan: GangPlan
    resume_from: CheckpointManifest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
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
        """Such as `trainer-0`."""
        return f"{self.role}-{self.role_rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
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
    """The time of its next verification; None unless a worker reported damage."""


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
class NotificationRecord:
    """A webhook that is not delivered yet."""

    id: int
    job: str
    state: JobState
    """The state in which the job ended."""
    at: datetime
    """The time of its end."""
    next_at: datetime
    tries: int
    """Tries that have begun."""
    notify: str = field(repr=False)
    """The URL."""
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token without its secrets."""

    name: str
    scopes: frozenset[Scope]
    max_queued: int | None
    max_slots: int | None
    max_stored_bytes: int | None
    max_priority: int | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None

    @property
    def limits(self) -> Limits:
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

    job: JobSummary
    attempt: AttemptRecord
    workers: tuple[WorkerRecord, ...]

    @property
    def nodes(self) -> set[str]:
        """The names of the nodes on which it has workers."""
        return {worker.node for worker in self.workers}
