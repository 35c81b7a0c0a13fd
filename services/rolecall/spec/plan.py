"""Placement decisions, and what a node needs to execute them."""

import json
from collections import Counter
from collections.abc import Collection
from typing import Annotated, Any, cast

from pydantic import AfterValidator, Field

from rolecall.spec.bounds import MAX_BIGINT, MAX_FILES, MAX_INTEGER, Text, at_most, is_text
from rolecall.spec.model import Value
from rolecall.spec.role import Role

_POSITION_CHARS = 64 << 10
_POSITION_LEVELS = 32
"""A node gets it within its answer, and no parser of JSON reads any depth."""


class WorkerPlan(Value):
    """The ranks of one worker, and the resources that it gets."""

    rank: int
    role: Role
    role_rank: int
    node: str
    threads: int
    """The number of its CPU threads."""
    gpu: str | None = None
    """The UUID of its GPU, which other workers use only if its node allows several."""


class GangPlan(Value):
    """The plan of every worker of one attempt, in rank order."""

    workers: tuple[WorkerPlan, ...]
    addresses: dict[str, str] = Field(default_factory=dict[str, str])
    """The address of each node for the others, by node name."""

    @property
    def world_size(self) -> int:
        return len(self.workers)

    def role_world_size(self, role: Role) -> int:
        return sum(worker.role is role for worker in self.workers)

    @property
    def role_counts(self) -> dict[Role, int]:
        return dict(Counter(worker.role for worker in self.workers))


class WorkerLaunch(Value):
    """The data with which a node starts one worker, and with which the worker runs."""

    job: str
    owner: str = ""
    """The name of the token that submitted the job; empty from a master of an earlier release."""
    attempt: int
    workload: str
    params: dict[str, Any]
    worker: WorkerPlan
    gang: GangPlan
    master_addr: str
    """The address of rank 0's node, where the rendezvous takes place."""
    rendezvous_port: int | None = None
    """None until rank 0 listens; the others wait for it."""
    resume_from: "CheckpointManifest | None" = None
    secret: str = Field(default="", repr=False)
    """The secret of this attempt's workers (see `spec.token`); empty from a master of an earlier release."""
    token: str = Field(default="", repr=False)
    """The worker's token for calls to the master (see `spec.token`)."""
    blob_url: str | None = None
    """An fsspec URL for checkpoints and artifacts; None if they go to the master."""


class CheckpointPart(Value):
    """One file of a checkpoint."""

    name: Text
    """Unique in the checkpoint, such as `parameter-server-0.safetensors`."""
    blob: Text
    """Its name below the job's folder in the blob store."""
    size: int = Field(ge=0, le=MAX_BIGINT)
    sha256: str


def _check_extent(position: dict[str, Any]) -> dict[str, Any]:
    if _is_deeper(position, _POSITION_LEVELS):
        raise ValueError(f"it is nested too deeply; at most {_POSITION_LEVELS} levels are allowed")
    if not is_text(json.dumps(position, ensure_ascii=False)):
        raise ValueError("it has half of a surrogate pair, which is not a character")
    if (size := len(json.dumps(position))) > _POSITION_CHARS:
        raise ValueError(
            f"it has {size} characters as JSON; at most {_POSITION_CHARS} are allowed: put large values into a part"
        )
    return position


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether containers in a JSON value are nested deeper, with at most this recursion."""
    if not isinstance(value, dict | list):
        return False
    inner = cast(Collection[Any], value.values() if isinstance(value, dict) else value)
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in inner)


class CheckpointManifest(Value):
    """The contents of a checkpoint, which is valid once the master has recorded this."""

    attempt: int = Field(ge=0, le=MAX_INTEGER)
    step: int = Field(ge=0, le=MAX_BIGINT)
    parts: Annotated[tuple[CheckpointPart, ...], Field(fail_fast=True), at_most(MAX_FILES)]
    position: Annotated[dict[str, Any], AfterValidator(_check_extent)]
    """The job's position in a format of the workload, such as epoch, step, seeds, and the best score so far."""
    keep: bool = False
    """True if newer checkpoints don't replace it (the best model so far), unless they have `keep` as well."""


WorkerLaunch.model_rebuild()
