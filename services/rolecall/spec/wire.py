"""The messages between nodes, workers and the master (below `/internal/`)."""

from typing import Any, cast

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from rolecall.spec.bounds import MOST_BYTES
from rolecall.spec.finding import Finding
from rolecall.spec.model import Value
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.report import WorkerReport
from rolecall.spec.state import StopMode

_REPORTS: TypeAdapter[WorkerReport] = TypeAdapter(WorkerReport)
_FINDINGS: TypeAdapter[Finding] = TypeAdapter(Finding)


class Heartbeat(Value):
    """A node's call: everything it runs, whole, every time."""

    started: str
    """The id of this daemon's life (see `NodeSpec.started`)."""
    seen: int = Field(default=-1, ge=-1, le=MOST_BYTES)
    """The version of the last `Desired` that it got."""
    wait_s: float = Field(default=0.0, ge=0.0, le=30.0)
    """How long the master may hold the answer back while nothing changes."""
    workers: tuple[WorkerReport, ...] = ()
    draining: bool = False
    findings: tuple[Finding, ...] = ()
    """What the node found when it last examined itself."""
    unread: tuple[str, ...] = Field(default=(), exclude=True)
    """What of it the receiver's release can't read: one such entry must not cost the whole call."""

    @model_validator(mode="before")
    @classmethod
    def _read_one_by_one(cls, data: Any) -> Any:
        fields = _fields(data)
        workers, unread = _readable(_REPORTS, fields.get("workers", ()))
        findings, more = _readable(_FINDINGS, fields.get("findings", ()))
        return data if not fields else {**fields, "workers": workers, "findings": findings, "unread": unread + more}


class DesiredWorker(Value):
    """A worker that a node should be running, or should be ending."""

    launch: WorkerLaunch
    stop: StopMode | None = None


class UnreadWorker(Value):
    """A worker of which an entry can't be read, but for its name."""

    job: str
    attempt: int
    rank: int
    why: str


_DESIRED: TypeAdapter[DesiredWorker] = TypeAdapter(DesiredWorker)


class Desired(Value):
    """What a node should be running. It starts what is missing and kills what is not listed."""

    version: int
    """Changes whenever the rest changes."""
    workers: tuple[DesiredWorker, ...]
    unread: tuple[UnreadWorker, ...] = Field(default=(), exclude=True)
    """Workers of which the receiver's release can't read the entry: one that runs goes on, one that doesn't is not
    started."""

    @model_validator(mode="before")
    @classmethod
    def _read_one_by_one(cls, data: Any) -> Any:
        fields = _fields(data)
        workers: list[Any] = []
        unread: list[UnreadWorker] = []
        for entry in fields.get("workers", ()):
            try:
                workers.append(_DESIRED.validate_python(entry))
            except ValidationError as error:
                unread.append(UnreadWorker(**_name(entry), why=_first(error)))
        return data if not fields else {**fields, "workers": workers, "unread": unread}


class Registered(Value):
    """The answer to a node's registration."""

    heartbeat_s: float
    """The longest time that the node may stay silent is a multiple of this."""
    master_version: str
    node_timeout_s: float | None = None
    """Silence after which the master counts the node as lost; None from a master that does not tell."""


class ClusterInfo(Value):
    """What a node must know of the cluster to judge itself."""

    time_s: float
    """The master's wall clock when it answered: seconds since 1970."""
    version: str
    """The master's."""
    boot_id: str = ""
    """The kernel's id of the master's machine, as `Machine.boot_id`; empty where the master does not say."""
    strangers: int
    """Living nodes that can't reach this one by a loopback address: other machines' and other containers'."""


class StreamOffset(Value):
    """How much of a log or progress stream the master has, in bytes: where the next piece starts."""

    size: int


class ArtifactNotice(Value):
    """A worker's word that an artifact's blob is complete."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    blob: str
    size: int = Field(ge=0, le=MOST_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


def _fields(data: Any) -> dict[str, Any]:
    """The fields of a message that is not read yet; none of what is no message."""
    return cast(dict[str, Any], data) if isinstance(data, dict) else {}


def _name(entry: Any) -> dict[str, Any]:
    """Which worker an entry is about."""
    launch = _fields(_fields(entry).get("launch"))
    worker = _fields(launch.get("worker"))
    return {"job": launch.get("job"), "attempt": launch.get("attempt"), "rank": worker.get("rank")}


def _readable(kind: TypeAdapter[Any], entries: Any) -> tuple[Any, list[str]]:
    """Those of `entries` that this release can read, and what is wrong with the others."""
    if not isinstance(entries, list | tuple):
        return entries, []
    found: list[Any] = []
    unread: list[str] = []
    for entry in cast(list[Any], entries):
        try:
            found.append(kind.validate_python(entry))
        except ValidationError as error:
            unread.append(_first(error))
    return found, unread


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{error.title}.{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
