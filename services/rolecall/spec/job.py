"""The request for a job, and the document that describes it in responses."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from rolecall.spec.bounds import Priority, at_most
from rolecall.spec.labels import LabelChanges, Labels
from rolecall.spec.model import Request, Value
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.redaction import Redacted, RedactedObject
from rolecall.spec.report import Failure, StartTimes, TimeSpent
from rolecall.spec.resources import Resources, RoleDemand
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, StopMode, WorkerState
from rolecall.spec.webhook import MAX_URL, ShownUrl

Name = Annotated[str, Field(max_length=120)]
# The catalogue refuses other names than the workload's, together with its other findings.
_RoleName = Annotated[str, Field(json_schema_extra={"enum": list[Any](Role)})]


class JobRequest(Request):
    """The body of `POST /jobs`."""

    workload: str = Field(max_length=120)
    """A name from `GET /workloads`."""
    params: Annotated[dict[str, Any], at_most(1000)] = Field(default_factory=dict)
    """The workload's parameters; `GET /workloads/{name}` has their schema."""
    roles: Annotated[Mapping[_RoleName, RoleDemand], at_most(20)] = Field(default_factory=dict[str, RoleDemand])
    """The number of workers of each role, or an object with the number and the resources of each worker. For other
    roles, the workload's defaults apply."""
    name: Name = ""
    """A name for people; it need not be unique."""
    labels: Labels = Field(default_factory=dict[str, str])
    """Names and values for filtering jobs, with the rules of Kubernetes."""
    priority: Priority = 0
    """Jobs with a higher priority start first."""
    max_restarts: int = Field(default=3, ge=0, le=1000, strict=True)
    """Maximum number of restarts after failed attempts. After the next failure, the job fails."""
    deadline_s: float | None = Field(default=None, gt=0, le=1e9, strict=True)
    """Seconds after submission at which the job is stopped."""
    notify: str | None = Field(default=None, max_length=MAX_URL, repr=False)
    """The URL to which the master sends a webhook when the job ends (https://www.standardwebhooks.com)."""


class JobSpec(JobRequest):
    """A validated request: parameters, role counts and resources are complete and valid."""

    id: str
    # Separate from the resources, so that earlier releases can read the counts.
    roles: dict[Role, int] = Field(  # pyright: ignore[reportIncompatibleVariableOverride] - values are frozen
        default_factory=dict[Role, int]
    )
    resources: dict[Role, Resources] = Field(default_factory=dict[Role, Resources])
    """The resources of each worker of a role. Placement decides for other roles."""


class JobUpdate(Request):
    """The body of `PATCH /jobs/{id}`, a JSON Merge Patch (RFC 7396).

    An omitted field keeps its value, and null resets it to its default.
    """

    name: Name | None = None
    priority: Priority | None = None
    """Takes effect as long as the job is queued, and when it is queued again."""
    labels: LabelChanges | None = None
    """Labels to set; null removes one. Others stay."""


class JobPlan(Value):
    """The response to `POST /jobs?dry_run=true`: the complete job, and which node would run which worker."""

    workload: str
    name: Redacted
    labels: dict[str, str]
    params: RedactedObject
    """Complete and validated parameters. Credentials are hidden."""
    roles: dict[Role, int]
    """The number of workers of each role."""
    resources: dict[Role, Resources]
    """The resources of each worker of a role. Placement decides for other roles."""
    priority: int
    max_restarts: int
    deadline_s: float | None
    notify: ShownUrl | None
    """The host of its webhook."""
    waiting_for: Redacted | None
    """The condition that the job would wait for; null if it would start now."""
    workers: tuple[WorkerPlan, ...]
    """The workers on their nodes, if the job started now. Empty if it would wait."""


class Progress(Value):
    """The newest state of a running job."""

    step: int = 0
    steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_s: float | None = None
    seconds_left: float | None = None
    start_s: StartTimes | None = None
    """From the submission (of a first attempt) or the requeue (of a later one) to the first optimizer step.

    Null in lists of jobs, and before that step.
    """
    metrics: dict[str, float] = Field(default_factory=dict)
    """Other values that the workload reports, such as `validation_auc`."""
    spent: TimeSpent | None = None
    """The uses of the job's time, if the workload reports them."""


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
    """One attempt of a job."""

    number: int
    state: JobState
    cause: Redacted | None
    stop: StopMode | None
    started_at: datetime
    ended_at: datetime | None
    workers: list[WorkerDocument]
    """Empty except for the newest 20 attempts. Only the newest 3 have tracebacks."""


class JobOverview(Value):
    """A job in `GET /jobs`."""

    id: str
    owner: str = "admin"
    """The name of the token that submitted it."""
    name: Redacted
    workload: str
    labels: dict[str, str] = Field(default_factory=dict[str, str])
    roles: dict[Role, int]
    """The number of workers of each role."""
    priority: int
    state: JobState
    reason: Redacted | None
    """The reason for this state if it is not obvious: the cause of a failure, or who cancelled the job."""
    waiting_for: Redacted | None
    """The condition that a queued job waits for."""
    attempt: int = 0
    """The number of the current attempt, or of the last; 0 before the first."""
    restarts: int = 0
    """Failed attempts since the submission or the last retry by hand."""
    progress: Progress
    goodput: float | None = None
    """The share of the time since submission that went into retained optimizer steps; null if the workload doesn't
    report it."""
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class JobDocument(JobOverview):
    """A job in `GET /jobs/{id}`."""

    params: RedactedObject
    """Complete and validated parameters. Credentials are hidden."""
    resources: dict[Role, Resources] = Field(default_factory=dict[Role, Resources])
    """The resources of each worker of a role. Placement decides for other roles."""
    max_restarts: int
    deadline_s: float | None
    notify: ShownUrl | None = None
    """The host of its webhook."""
    lost_s: dict[str, float] | None = None
    """The seconds that did not go into retained steps, by cause: `queue`, `paused`, `start`, `checkpoint`,
    `evaluation`, `finish` (after the last step: final evaluation, samples and export), `repeated` (steps that a failed
    attempt lost) and `other`. Null if the workload doesn't report it."""
    attempts: list[AttemptDocument]
    result: RedactedObject | None
    """The workload's final metrics."""
