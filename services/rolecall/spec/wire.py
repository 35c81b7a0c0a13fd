"""The messages between nodes, workers and the master (below `/internal/`)."""

from pydantic import Field

from rolecall.spec.bounds import MOST_BYTES
from rolecall.spec.finding import Finding
from rolecall.spec.model import Value
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.report import WorkerReport
from rolecall.spec.state import StopMode


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


class DesiredWorker(Value):
    """A worker that a node should be running, or should be ending."""

    launch: WorkerLaunch
    stop: StopMode | None = None


class Desired(Value):
    """What a node should be running. It starts what is missing and kills what is not listed."""

    version: int
    """Changes whenever the rest changes."""
    workers: tuple[DesiredWorker, ...]


class Registered(Value):
    """The answer to a node's registration."""

    heartbeat_s: float
    """The longest time that the node may stay silent is a multiple of this."""
    master_version: str
    node_timeout_s: float | None = None
    """Silence after which the master counts the node as lost; None from a master that does not tell."""


class Surroundings(Value):
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
    sha256: str = Field(max_length=64)
