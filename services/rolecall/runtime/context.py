"""The argument of a role's `run(context)`."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import torch

from rolecall.runtime.artifacts import Artifacts
from rolecall.runtime.checkpoint import Checkpoints
from rolecall.runtime.reporter import Reporter
from rolecall.runtime.timeline import Timeline
from rolecall.spec.plan import WorkerLaunch, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode
from rolecall.spec.timeline import Category
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import P


@dataclass(frozen=True, slots=True)
class WorkerContext(Generic[P]):
    """One worker's position in its gang, its folders, and its reports, checkpoints and artifacts."""

    launch: WorkerLaunch
    params: P
    device: torch.device
    """The worker's own GPU, or the CPU."""
    workdir: Workdir
    cache: Path
    """A folder for reproducible data, which persists between attempts. The owner's workers share it on each node."""
    report: Reporter
    """`context.report(step, loss=…)`; also `.event(text)` and `.result(metrics)`."""
    checkpoints: Checkpoints
    artifacts: Artifacts
    timeline: Timeline = field(default_factory=Timeline)
    """`with context.timeline.span("forward", micro_batch=3): …`: the phases of recent steps."""

    @property
    def rank(self) -> int:
        """The worker's rank in the gang."""
        return self.launch.worker.rank

    @property
    def world_size(self) -> int:
        return self.launch.gang.world_size

    @property
    def role(self) -> Role:
        return self.launch.worker.role

    @property
    def role_rank(self) -> int:
        """The worker's rank among the workers of its role."""
        return self.launch.worker.role_rank

    def count(self, role: Role) -> int:
        """The number of workers with `role`."""
        return self.launch.gang.role_world_size(role)

    def stop_requested(self) -> StopMode | None:
        """The request to stop between two steps (cancel, pause, drain, deadline), or None."""
        try:
            return StopMode(self.workdir.stop.read_text().strip())
        except FileNotFoundError:
            return None


_current: WorkerContext[Any] | None = None


def enter(context: WorkerContext[Any]) -> None:
    """Set the context of this process. Call it once, before the rendezvous, after which RPC calls can arrive."""
    global _current  # noqa: PLW0603 - a process runs one worker in its life, and RPC handlers have no other access to it
    _current = context


def current() -> WorkerContext[Any]:
    """The context of this process, for functions that other workers call by RPC."""
    if _current is None:
        raise RuntimeError("this process is not a worker")
    return _current


def current_or_none() -> WorkerContext[Any] | None:
    """The context of this process; None in a process that is not a worker."""
    return _current


def span(
    name: str, category: Category = "compute", *, stage: int | None = None, micro_batch: int | None = None
) -> AbstractContextManager[None]:
    """A span of this worker's timeline (see `Timeline.span`), for code without the context. Elsewhere, nothing."""
    if _current is None:
        return nullcontext()
    return _current.timeline.span(name, category, stage=stage, micro_batch=micro_batch)


def worker_name(role: Role, role_rank: int) -> str:
    """A worker's name in RPC, for example `trainer-0`."""
    return f"{role}-{role_rank}"


def own_device(worker: WorkerPlan) -> torch.device:
    """The device of this process as `worker`: its GPU, the only one that it sees, or the CPU. Initializes CUDA."""
    if worker.gpu is None:
        return torch.device("cpu")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0)
