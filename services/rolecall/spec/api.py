"""The documents of the HTTP API, for the master's routes and for the client.

Jobs, nodes, tokens and findings have files of their own; this file has the lists of them, and the remaining documents.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from rolecall.spec.bounds import AwareMoment
from rolecall.spec.finding import Finding, NodeFinding
from rolecall.spec.job import JobOverview
from rolecall.spec.metric import Split
from rolecall.spec.model import Request, Value
from rolecall.spec.node import NodeDocument
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.redaction import Redacted
from rolecall.spec.role import Role
from rolecall.spec.state import JobState


class JobPage(Value):
    """A page of `GET /jobs`, newest first."""

    jobs: list[JobOverview]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")


class PruneRequest(Request):
    """The body of `POST /jobs/prune`."""

    ended_before: AwareMoment
    state: Literal[JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED] | None = None
    """Only jobs that ended in this state; by default all ended jobs."""
    dry_run: bool = False
    """True to only list the jobs."""


class PrunedJob(Value):
    """A job that is deleted or, in a dry run, would be."""

    id: str
    name: str
    state: JobState
    ended_at: datetime
    size: int
    """Bytes of its logs, progress, recorded checkpoints and artifacts."""


class PruneSummary(Value):
    """The response to `POST /jobs/prune`."""

    jobs: list[PrunedJob]
    size: int
    """Total bytes of all these jobs."""


WORKER = "worker"
"""The kind of the events that workers report."""
RETENTION = "retention"
"""The kind of the events of old checkpoints that are deleted as configured. Commands that follow a job skip them."""


class Event(Value):
    """Something that happened to a job."""

    id: int
    at: datetime
    attempt: int | None
    kind: str
    message: Redacted


class EventList(Value):
    """`GET /jobs/{id}/events`."""

    events: list[Event]


class Series(Value):
    """The steps that one worker reported."""

    attempt: int
    rank: int
    role: Role
    role_rank: int
    points: list[dict[str, Any]]


COORDINATES = ("attempt", "rank", "role", "role_rank", "step", "at", "epoch")
"""The names of a step's values that say where and when it was, unlike those that the worker reported."""


class SeriesList(Value):
    """`GET /jobs/{id}/metrics`."""

    series: list[Series]


class Checkpoint(Value):
    """A recorded checkpoint."""

    manifest: CheckpointManifest
    created_at: datetime


class CheckpointList(Value):
    """`GET /jobs/{id}/checkpoints`, newest first."""

    checkpoints: list[Checkpoint]


class Artifact(Value):
    """A file that the job leaves behind."""

    name: str
    attempt: int
    size: int
    sha256: str
    created_at: datetime


class ArtifactList(Value):
    """`GET /jobs/{id}/artifacts`."""

    artifacts: list[Artifact]


class RoleDocument(Value):
    """The number of workers of a role that a workload supports."""

    default: int
    least: int
    most: int
    expendable: bool = False


class MetricDocument(Value):
    """A metric that a workload declares."""

    name: str
    """Also the label `metric` of `rolecall_job_metric` and `rolecall_job_result` in Prometheus."""
    help: str
    unit: str
    """A base unit; empty for numbers without one."""
    direction: Literal["higher", "lower"] | None
    """The direction of better values, if there is one."""
    reported: dict[Split, str]
    """The name of each split in the job's series, progress and result. `{index}` stands for a number."""


class WorkloadDocument(Value):
    """A workload with its roles and parameters."""

    name: str
    summary: str
    roles: dict[Role, RoleDocument]
    params: dict[str, Any]
    """The JSON schema of its parameters."""
    example: dict[str, Any] | None = None
    """The body of `POST /jobs` for a job that runs; null if the workload has no example."""
    metrics: list[MetricDocument] = Field(default_factory=list[MetricDocument])
    """The metrics that its workers report."""


class WorkloadList(Value):
    """`GET /workloads`."""

    workloads: list[WorkloadDocument]
    broken: dict[str, str]
    """Plug-ins that could not be loaded, with the error of each."""


class NodeList(Value):
    """`GET /nodes`."""

    nodes: list[NodeDocument]


class FindingList(Value):
    """`GET /findings`."""

    findings: list[Finding]


class Volume(Value):
    """The volume of the master's data folder, in bytes."""

    free: int
    total: int
    reserve: int
    """Free space below which logs and uploads are refused."""


class Health(Value):
    """`GET /healthz`."""

    status: str


class Readiness(Health):
    """`GET /readyz`."""

    volume: Volume | None = None
    """The free space of its data folder. Null from masters that don't report it."""


class Examination(Value):
    """The findings of a job of the workload `preflight`."""

    job: str | None = Field(description="Null for a job that the token can't see.")
    measured_at: datetime
    age_s: float = Field(description="Seconds since then; `rolecall doctor` measures again.")
    findings: tuple[NodeFinding, ...] = Field(description="The findings about the node and its connections.")


class Preflight(Value):
    """`GET /nodes/{node}/preflight`."""

    node: str
    alive: bool
    findings: tuple[Finding, ...] = Field(description="The results of the node's latest self-check.")
    network: Examination | None = Field(
        description="The newest examination of the node's connections by the token itself or a token with the scope "
        "`admin`; null if there is none."
    )
