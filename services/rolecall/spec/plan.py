"""What was decided: who runs where."""

import json
from collections import Counter
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from rolecall.spec.bounds import MOST, MOST_BYTES, MOST_FILES, at_most
from rolecall.spec.model import Value
from rolecall.spec.role import Role

_POSITION_CHARS = 64 << 10


class WorkerPlan(Value):
    """One worker's place in the gang and on a machine."""

    rank: int
    role: Role
    role_rank: int
    node: str
    threads: int
    """Its share of the machine's cores."""
    gpu: str | None = None
    """The UUID of the GPU that it alone may use."""


class GangPlan(Value):
    """The place of every worker of one attempt, in rank order."""

    workers: tuple[WorkerPlan, ...]
    addresses: dict[str, str] = Field(default_factory=dict[str, str])
    """Where each node of the gang is reached by the others, by its name."""

    @property
    def world_size(self) -> int:
        """The number of workers."""
        return len(self.workers)

    def role_world_size(self, role: Role) -> int:
        """The number of workers that play `role`."""
        return sum(worker.role is role for worker in self.workers)

    @property
    def role_counts(self) -> dict[Role, int]:
        """The number of workers of each role that the gang has."""
        return dict(Counter(worker.role for worker in self.workers))


class WorkerLaunch(Value):
    """All that a node needs to start one worker, and the worker to play its part."""

    job: str
    attempt: int
    workload: str
    params: dict[str, Any]
    worker: WorkerPlan
    gang: GangPlan
    master_addr: str
    """Where the gang meets: the address of rank 0's node."""
    rendezvous_port: int | None = None
    """Known once rank 0 listens; the others wait for it."""
    resume_from: "CheckpointManifest | None" = None
    secret: str = Field(default="", repr=False)
    """What only this attempt's workers know (see `spec.token`); empty from a master of an earlier release."""
    token: str = Field(default="", repr=False)
    """What the worker shows to the master (see `spec.token`)."""
    blob_url: str | None = None
    """An fsspec URL for checkpoints and artifacts, or none: then they go to the master."""


class CheckpointPart(Value):
    """One file of a checkpoint."""

    name: str
    """Unique in the checkpoint, e.g. `parameter-server-0.safetensors`."""
    blob: str
    """Where it lies: a name below the job's folder in the blob store."""
    size: int = Field(ge=0, le=MOST_BYTES)
    sha256: str


def _small(position: dict[str, Any]) -> dict[str, Any]:
    if (size := len(json.dumps(position))) > _POSITION_CHARS:
        raise ValueError(
            f"it has {size} characters as JSON; at most {_POSITION_CHARS} are possible: put more into a part"
        )
    return position


class CheckpointManifest(Value):
    """Closes a checkpoint: it counts once the master has recorded it."""

    attempt: int = Field(ge=0, le=MOST)
    step: int = Field(ge=0, le=MOST_BYTES)
    parts: Annotated[tuple[CheckpointPart, ...], at_most(MOST_FILES)]
    position: Annotated[dict[str, Any], AfterValidator(_small)]
    """Where the job stood, in the workload's own terms: epoch, step, seeds, the best score so far."""
    keep: bool = False
    """Whether it outlives newer ones (the best model so far), until a newer one is to be kept."""


WorkerLaunch.model_rebuild()
