"""The messages between nodes, workers and the master (below `/internal/`)."""

from typing import Any, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from rolecall.spec.bounds import MAX_BIGINT, AwareMoment
from rolecall.spec.finding import Finding
from rolecall.spec.inspection import Inspection
from rolecall.spec.model import Value, first_problem
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.report import WorkerReport
from rolecall.spec.state import StopMode

INCARNATION_HEADER = "X-Rolecall-Incarnation"
"""`NodeSpec.started` in the call with which a node leaves. It is no part of the URL, which proxies log."""
_REPORTS: TypeAdapter[WorkerReport] = TypeAdapter(WorkerReport)
_FINDINGS: TypeAdapter[Finding] = TypeAdapter(Finding)


class Heartbeat(Value):
    """A node's periodic call. It always contains the complete state of all its workers."""

    started: str
    """The id of the daemon's process (see `NodeSpec.started`)."""
    seen: int = Field(default=-1, ge=-1, le=MAX_BIGINT)
    """The version of the last `Desired` that the node received."""
    wait_s: float = Field(default=0.0, ge=0.0, le=30.0)
    """The maximum time for which the master may delay the response while nothing changes."""
    workers: tuple[WorkerReport, ...] = ()
    draining: bool = False
    findings: tuple[Finding, ...] = ()
    """The results of the node's latest self-check."""
    unread: tuple[str, ...] = Field(default=(), exclude=True)
    """Errors of entries that the receiver's release can't parse. They must not invalidate the whole call."""

    @model_validator(mode="before")
    @classmethod
    def _parse_entries(cls, data: Any) -> Any:
        fields = _fields(data)
        workers, unread = _parse_each(_REPORTS, fields.get("workers", ()))
        findings, more = _parse_each(_FINDINGS, fields.get("findings", ()))
        errors = [why for _, why in unread + more]
        return data if not fields else {**fields, "workers": workers, "findings": findings, "unread": errors}


class DesiredWorker(Value):
    """A worker that a node should run or stop."""

    launch: WorkerLaunch
    stop: StopMode | None = None
    inspection: Inspection | None = None
    """A request to the running worker, until its answer arrives."""


class UnreadWorker(Value):
    """A worker whose entry can't be parsed except for its identity."""

    job: str
    attempt: int
    rank: int
    why: str


_DESIRED: TypeAdapter[DesiredWorker] = TypeAdapter(DesiredWorker)


class Desired(Value):
    """The workers that a node should run. It starts missing workers and kills unlisted ones."""

    version: int
    """Changes with every change of the other fields."""
    workers: tuple[DesiredWorker, ...]
    unread: tuple[UnreadWorker, ...] = Field(default=(), exclude=True)
    """Workers whose entries the receiver's release can't parse. Those that run continue; others are not started."""

    @model_validator(mode="before")
    @classmethod
    def _parse_entries(cls, data: Any) -> Any:
        fields = _fields(data)
        workers, unread = _parse_each(_DESIRED, fields.get("workers", ()))
        named = [UnreadWorker(**_worker_id(entry), why=why) for entry, why in unread]
        return data if not fields else {**fields, "workers": workers, "unread": named}


class Registered(Value):
    """The response to a node's registration."""

    heartbeat_s: float
    """The heartbeat interval. The longest allowed silence is a multiple of it."""
    master_version: str
    node_timeout_s: float | None = None
    """Seconds of silence after which the master certainly considers the node lost; None from masters that don't send
    it."""


class ScrapeToken(Value):
    """A valid secret of a token with only the scope `metrics`."""

    digest: str = Field(repr=False)
    """See `spec.token.digest_of`."""
    expires_at: AwareMoment | None = None


class ClusterInfo(Value):
    """The cluster's properties that a node needs for its self-check and its `/metrics`."""

    # Nodes and masters of release 0.1 know `remote_nodes` by its alias.
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)

    time_s: float
    """The master's wall clock when it answered: seconds since 1970."""
    monotonic_s: float | None = None
    """The monotonic clock of the master's machine at the same moment; None from masters that don't send it."""
    version: str
    """The master's version."""
    boot_id: str = ""
    """The boot id of the master's machine, as in `Machine`; empty from masters that don't send it."""
    remote_nodes: int = Field(validation_alias="strangers", serialization_alias="strangers")
    """The number of live nodes in other network namespaces, which can't reach a loopback address of this node."""
    scrape_tokens: tuple[ScrapeToken, ...] = ()
    """The tokens that the node's `/metrics` accepts, without the built-in ones."""


class StreamOffset(Value):
    """The bytes of a log or progress stream that the master has: the offset of the next chunk."""

    size: int


class ArtifactNotice(Value):
    """A worker's notice that the blob of an artifact is complete."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    blob: str
    size: int = Field(ge=0, le=MAX_BIGINT)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


def _fields(data: Any) -> dict[str, Any]:
    """The fields of an unparsed message; empty if it is not an object."""
    return cast(dict[str, Any], data) if isinstance(data, dict) else {}


def _worker_id(entry: Any) -> dict[str, Any]:
    """The identity of an entry's worker."""
    launch = _fields(_fields(entry).get("launch"))
    worker = _fields(launch.get("worker"))
    return {"job": launch.get("job"), "attempt": launch.get("attempt"), "rank": worker.get("rank")}


def _parse_each(kind: TypeAdapter[Any], entries: Any) -> tuple[Any, list[tuple[Any, str]]]:
    """The parsed entries, and those that this release can't parse, with their errors."""
    if not isinstance(entries, list | tuple):
        return entries, []
    parsed: list[Any] = []
    unread: list[tuple[Any, str]] = []
    for entry in cast(list[Any], entries):
        try:
            parsed.append(kind.validate_python(entry))
        except ValidationError as error:
            unread.append((entry, first_problem(error)))
    return parsed, unread
