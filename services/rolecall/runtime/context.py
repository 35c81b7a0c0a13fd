"""What a role's `run(context)` is given."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import torch

from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.checkpoint import Checkpoints
from rolecall.runtime.reporter import Reporter
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import P


@dataclass(frozen=True, slots=True)
class WorkerContext(Generic[P]):
    """One worker's place in its gang and its ways to the outside."""

    launch: WorkerLaunch
    params: P
    device: torch.device
    """The GPU that this worker alone uses, or the CPU."""
    workdir: Workdir
    cache: Path
    """A folder that all workers of this node share and that outlives attempts, for what can be made again."""
    report: Reporter
    """`context.report(step, loss=…)`; also `.event(text)` and `.result(metrics)`."""
    checkpoints: Checkpoints
    artifacts: Artifacts

    @property
    def rank(self) -> int:
        """This worker's place among all of the gang."""
        return self.launch.worker.rank

    @property
    def world_size(self) -> int:
        """The number of workers in the gang."""
        return self.launch.gang.world_size

    @property
    def role(self) -> Role:
        """The part that this worker plays."""
        return self.launch.worker.role

    @property
    def role_rank(self) -> int:
        """This worker's place among those of its role."""
        return self.launch.worker.role_rank

    def count(self, role: Role) -> int:
        """How many workers play `role`."""
        return self.launch.gang.role_world_size(role)

    def stop_requested(self) -> StopMode | None:
        """Whether, and why, the gang is asked to leave between two steps (cancel, pause, drain, deadline)."""
        try:
            return StopMode(self.workdir.stop.read_text().strip())
        except FileNotFoundError:
            return None


_current: WorkerContext[Any] | None = None


def enter(context: WorkerContext[Any]) -> None:
    """Make `context` this process's own. Called once, before the gang meets: calls of others may come at once after."""
    global _current  # noqa: PLW0603 - a process plays one worker in its life, and RPC handlers have no other way to it
    _current = context


def current() -> WorkerContext[Any]:
    """This process's context, for functions that other workers call by RPC."""
    if _current is None:
        raise RuntimeError("this process is not a worker")
    return _current


def worker_name(role: Role, role_rank: int) -> str:
    """A worker's name in RPC, e.g. `trainer-0`."""
    return f"{role}-{role_rank}"
