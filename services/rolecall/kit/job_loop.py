"""The base of training loops: position, checkpoints and result of any job.

All ranks of the default process group run the loop in lockstep. Without a process group, a single driver runs it.
Subclasses define the model and its training.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch.distributed as dist

from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import Stopped
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.report import TimeSpent
from rolecall.spec.timeline import STEP_CATEGORIES, Activity
from rolecall.spec.workload import Params

_LOG_EVERY_S = 5.0
"""The interval between two lines about progress in a worker's log. Short epochs must not fill it."""
_SPENT = "spent"
"""The key of the time spent so far in a checkpoint."""
AnyParams = TypeVar("AnyParams", bound=Params)


class _Dataclass(Protocol):
    """A dataclass whose fields go into checkpoints as JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


AnyPosition = TypeVar("AnyPosition", bound=_Dataclass)


class JobLoop(ABC, Generic[AnyPosition, AnyParams]):
    """One rank's share of a job. `position` and the tensors of a checkpoint are the whole state of the training."""

    def __init__(
        self,
        context: WorkerContext[AnyParams],
        position: AnyPosition,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.context = context
        self.params = context.params
        self.position = position
        self._clock = clock
        self._last_save = clock()
        self._next_log = clock()
        self._resumed = TimeSpent()
        self._began = context.timeline.seconds()
        self._trained: dict[Activity, float] | None = None
        """The time by activity when the work after the last step began."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Steps since the start of the job; names the checkpoint."""

    @abstractmethod
    def run(self) -> dict[str, float] | None:
        """Train to the end. Returns the job's result, or None after a stop request."""

    @abstractmethod
    def save_parts(self, step: int) -> Sequence[CheckpointPart]:
        """Write the checkpoint parts for `step` that this rank is responsible for, here or on other workers."""

    @abstractmethod
    def load(self, manifest: CheckpointManifest) -> None:
        """Restore the checkpoint `manifest`; called on all ranks."""

    def play(self) -> None:
        """Train to the end; the first worker of the role reports the job's result.

        Raises `Stopped` after a stop request.
        """
        result = self.run()
        if result is None:
            raise Stopped("stopped between two steps, as requested")
        if self.context.role_rank == 0:
            self.context.report.result(result)

    def resume(self) -> None:
        """Restore the checkpoint that this attempt resumes from, if any."""
        manifest = self.context.checkpoints.resume_from
        if manifest is None:
            return
        self.load(manifest)
        own = {field.name for field in fields(self.position)}  # A newer release can have stored further fields.
        self.position = type(self.position)(**{name: one for name, one in manifest.position.items() if name in own})
        self._resumed = TimeSpent.model_validate(manifest.position.get(_SPENT, {}))
        if _is_rank_zero():
            self.context.report.event(f"resumed from the checkpoint at step {manifest.step}")

    def save(self, *, keep: bool = False) -> dict[str, Any] | None:
        """Write a checkpoint; called on all ranks. Returns its manifest on every rank, or None if it was skipped."""
        with self.context.timeline.span("checkpoint", "checkpoint"):
            return self._save(keep)

    def _save(self, keep: bool) -> dict[str, Any] | None:
        if dist.is_initialized():
            dist.barrier()  # No rank may still update weights that another rank is about to write.
        parts = _gather_parts(self.save_parts(self.step))
        manifest: dict[str, Any] | None = None
        if _is_rank_zero():
            position = asdict(self.position) | {_SPENT: self.spent().model_dump()}
            committed = self.context.checkpoints.commit(self.step, parts, position, keep=keep)
            manifest = committed.model_dump(mode="json") if committed else None
        self._last_save = self._clock()
        return _broadcast_manifest(manifest)

    @contextmanager
    def finishing(self, work: str) -> Generator[None]:
        """A context manager for the work after the last step, such as `exporting the model`.

        The job's events announce it, and its whole time is reported apart from other times.
        """
        if self.context.role_rank == 0:
            self.context.report.finishing(self.step, work)
        self._trained = self.context.timeline.seconds()
        yield
        self.context.report.finished(self.step, self.spent())

    def spent(self) -> TimeSpent:
        """The time of this job until now, without what was lost with earlier attempts."""
        whole, before = self.context.timeline.seconds(), self._resumed
        seconds = self._trained or whole
        now = {activity: seconds[activity] - self._began[activity] for activity in seconds}
        return TimeSpent(
            steps=before.steps + sum(now[category] for category in STEP_CATEGORIES),
            data=round(before.data + now["data"], 3),
            communication=round(before.communication + now["communication"], 3),
            wait=round(before.wait + now["wait"], 3),
            checkpoint=before.checkpoint + now["checkpoint"],
            evaluation=before.evaluation + now["evaluation"],
            finish=before.finish + max(0.0, sum(whole.values()) - sum(seconds.values())),
            resumed=before.total,
        )

    def at_checkpoint_step(self, every_steps: int | None) -> bool:
        """True if this step is a multiple of `every_steps`; None means never."""
        return every_steps is not None and self.step % every_steps == 0

    def checkpoint_overdue(self, every_s: float | None) -> bool:
        """True on rank 0 if the last checkpoint is older than `every_s` seconds; False on other ranks."""
        # With a clock on each rank, one overdue checkpoint would trigger the next.
        return _is_rank_zero() and every_s is not None and self._clock() - self._last_save >= every_s

    def _take_log_turn(self, *, is_last: bool) -> bool:
        """True on the first worker of the role if progress has not been logged for some seconds, or if `is_last`.

        The caller must then log it, because the next turn comes some seconds after this one.
        """
        now = self._clock()
        due = self.context.role_rank == 0 and (is_last or now >= self._next_log)
        if due:
            self._next_log = now + _LOG_EVERY_S
        return due


def _is_rank_zero() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _gather_parts(parts: Sequence[CheckpointPart]) -> list[CheckpointPart]:
    if not dist.is_initialized():
        return list(parts)
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, list(parts))
    return [part for of_rank in gathered for part in of_rank]


def _broadcast_manifest(manifest: dict[str, Any] | None) -> dict[str, Any] | None:
    if not dist.is_initialized():
        return manifest
    broadcast = [manifest]
    dist.broadcast_object_list(broadcast, src=0)
    return broadcast[0]
