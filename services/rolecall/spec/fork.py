"""The messages between a node and its fork server: one JSON line each."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rolecall.spec.model import Value
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.trust import Trust


class ForkRequest(Value):
    """A node's wish for one worker, and all that the worker is given."""

    key: str
    """Names the worker in the answers: `job/attempt/rank`."""
    launch: WorkerLaunch
    workdir: Path
    """The worker's folder (see `spec.workdir`); it exists."""
    cache: Path
    """A folder that all workers of the node share and that outlives attempts."""
    master_url: str
    trust: Trust | None = None
    """Whom the worker takes for the master; None for plain HTTP."""
    token: str = Field(repr=False)
    """What the worker shows to the master (see `spec.token`)."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables for this worker alone, e.g. `CUDA_VISIBLE_DEVICES`."""


class Ready(Value):
    """Everything is imported; workers can be forked."""

    kind: Literal["ready"] = "ready"


class Forked(Value):
    """The worker's process runs, in a session and process group of its own."""

    kind: Literal["forked"] = "forked"
    key: str
    pid: int


class Refused(Value):
    """The worker could not be forked, and why."""

    kind: Literal["refused"] = "refused"
    key: str
    message: str


class Exited(Value):
    """A worker's process ended and is reaped."""

    kind: Literal["exited"] = "exited"
    key: str
    pid: int
    status: int
    """As `subprocess` has it: negative for a signal."""


ForkReply = Annotated[Ready | Forked | Refused | Exited, Field(discriminator="kind")]
FORK_REPLY: TypeAdapter[ForkReply] = TypeAdapter(ForkReply)
