"""The messages between a node and its fork server: one JSON line each."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rolecall.spec.model import Value
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.trust import Trust

_Pid = Annotated[int, Field(gt=1, le=1 << 22)]
"""A process id that the kernel can assign to a worker. A signal to 0 or less would hit other processes."""


class ForkRequest(Value):
    """A node's request to fork one worker."""

    key: str
    """Identifies the worker in the replies: `job/attempt/rank`."""
    launch: WorkerLaunch
    workdir: Path
    """The worker's folder (see `spec.workdir`), which must exist."""
    data: Path | None = None
    """The node's data folder, most of which the sandbox hides from the worker; None if `cache` lies directly in it."""
    cache: Path
    """The folder that the workers of this owner share on the node. It persists between attempts."""
    master_url: str
    trust: Trust | None = None
    """The CA and name for the verification of the master's certificate; None for plain HTTP."""
    token: str = Field(repr=False)
    """The worker's token for calls to the master (see `spec.token`)."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of this worker only, such as `CUDA_VISIBLE_DEVICES`."""


class Ready(Value):
    """The fork server has imported everything and can fork workers."""

    kind: Literal["ready"] = "ready"


class Forked(Value):
    """The worker's process runs in its own session and process group."""

    kind: Literal["forked"] = "forked"
    key: str
    pid: _Pid


class NotForked(Value):
    """The worker could not be forked; `message` gives the reason."""

    kind: Literal["refused"] = "refused"
    key: str
    message: str


class Exited(Value):
    """A worker's process has exited and been reaped."""

    kind: Literal["exited"] = "exited"
    key: str
    pid: _Pid
    status: int
    """The exit code as in `subprocess`: negative for a signal."""


ForkReply = Annotated[Ready | Forked | NotForked | Exited, Field(discriminator="kind")]
FORK_REPLY: TypeAdapter[ForkReply] = TypeAdapter(ForkReply)
