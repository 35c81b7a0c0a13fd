"""What a user asks for, and the whole document that they read back."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from rolecall.spec.bounds import at_most
from rolecall.spec.model import Request, Value
from rolecall.spec.redaction import Redacted, RedactedObject
from rolecall.spec.report import Failure, StartTimes
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, StopMode, WorkerState


class JobRequest(Request):
    """The body of `POST /jobs`."""

    workload: str = Field(max_length=120)
    """A name from `GET /workloads`."""
    params: Annotated[dict[str, Any], at_most(1000)] = Field(default_factory=dict)
    """The workload's parameters; `GET /workloads/{name}` has their schema."""
    roles: Annotated[dict[Role, Annotated[int, Field(strict=True, le=1_000_000)]], at_most(20)] = Field(
        default_factory=dict[Role, int]
    )
    """How many workers of each role; the workload's defaults fill in what is not named."""
    name: str = Field(default="", max_length=120)
    """A label for people."""
    priority: int = Field(default=0, ge=-100, le=100, strict=True)
    """Higher goes first."""
    max_restarts: int = Field(default=3, ge=0, le=1000, strict=True)
    """Failed attempts after which the job is given up."""
    deadline_s: float | None = Field(default=None, gt=0, le=1e9, strict=True)
    """Seconds after submission when the job is stopped."""


class JobSpec(JobRequest):
    """A checked request: parameters and role counts are complete and legal."""

    id: str


class Progress(Value):
    """The newest state of a running job."""

    step: int = 0
    steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    seconds_left: float | None = None
    start_s: StartTimes | None = None
    """From the submission (of a first attempt) or the requeue (of a later one) to the first optimizer step."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Whatever else the workload reports, e.g. `validation_auc`."""


class WorkerDocument(Value):
    """One worker of an attempt."""

    rank: int
    role: Role
    role_rank: int
    node: str
    pid: int | None
    state: WorkerState
    failure: Failure | None = None


class AttemptDocument(Value):
    """One try at a job."""

    number: int
    state: JobState
    cause: Redacted | None
    stop: StopMode | None
    started_at: datetime
    ended_at: datetime | None
    workers: list[WorkerDocument]
    """Of the newest 20 attempts; of older ones only the attempt itself is shown. The newest 3 have tracebacks."""


class JobDocument(Value):
    """A job as `GET /jobs/{id}` shows it."""

    id: str
    owner: str = "admin"
    """The name of the token that submitted it."""
    name: Redacted
    workload: str
    params: RedactedObject
    """As they were completed and checked; credentials in URLs are hidden."""
    roles: dict[Role, int]
    priority: int
    max_restarts: int
    deadline_s: float | None
    state: JobState
    reason: Redacted | None
    """Why the job is in this state, when that is not plain: a failure's cause, who cancelled."""
    waiting_for: Redacted | None
    """What a queued job waits for."""
    progress: Progress
    attempts: list[AttemptDocument]
    result: RedactedObject | None
    """The workload's final metrics."""
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
