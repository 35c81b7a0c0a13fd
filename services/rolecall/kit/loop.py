"""The bookkeeping of a job: its position, checkpoints and result; and of a training that goes in epochs besides steps,
progress, early stopping, and leaving when asked.

All ranks of the default process group run a loop in step; where there is no process group, one driver runs it alone.
What is trained, and how, a workload says in a subclass.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist

from rolecall.kit.params import TrainingParams
from rolecall.runtime.agreement import Agreement, Decision
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import Stopped
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.state import StopMode
from rolecall.spec.workload import Params

Batch = TypeVar("Batch")
AnyParams = TypeVar("AnyParams", bound=Params)
P = TypeVar("P", bound=TrainingParams)
Held = Literal["validation", "test"]
"""The splits that are not trained on."""


class _Frozen(Protocol):
    """A dataclass; its fields go into checkpoints as JSON."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


AnyPosition = TypeVar("AnyPosition", bound=_Frozen)


class JobLoop(ABC, Generic[AnyPosition, AnyParams]):
    """One rank's part of a job; `position` says where the job stands, besides the tensors in its checkpoints."""

    def __init__(self, context: WorkerContext[AnyParams], position: AnyPosition) -> None:
        self.context = context
        self.params = context.params
        self.position = position
        self._last_save = time.monotonic()

    @property
    @abstractmethod
    def step(self) -> int:
        """Steps done since the job began; a checkpoint is named after it."""

    @abstractmethod
    def run(self) -> dict[str, float] | None:
        """Train to the end; the job's result, or None if the gang was asked to leave."""

    @abstractmethod
    def save_parts(self, step: int) -> Sequence[CheckpointPart]:
        """Write this rank's part of the checkpoint after `step`, and have those written that this rank answers for."""

    @abstractmethod
    def load(self, manifest: CheckpointManifest) -> None:
        """Go back to `manifest`, all ranks together."""

    def play(self) -> None:
        """Train to the end; the first worker of its role reports the job's result.

        Raises `Stopped` if the gang was asked to leave.
        """
        result = self.run()
        if result is None:
            raise Stopped("left between two steps, as asked")
        if self.context.role_rank == 0:
            self.context.report.result(result)

    def resume(self) -> None:
        """Go back to the checkpoint with which the attempt begins, if there is one."""
        manifest = self.context.checkpoints.resume_from
        if manifest is None:
            return
        self.load(manifest)
        self.position = type(self.position)(**manifest.position)
        if _is_first():
            self.context.report.event(f"resumed from the checkpoint at step {manifest.step}")

    def save(self, *, keep: bool = False) -> dict[str, Any] | None:
        """Write a checkpoint with all ranks; its manifest on every rank, None if it was skipped."""
        if dist.is_initialized():
            dist.barrier()  # No rank may still change what another is about to write.
        parts = _gathered(self.save_parts(self.step))
        manifest: dict[str, Any] | None = None
        if _is_first():
            committed = self.context.checkpoints.commit(self.step, parts, asdict(self.position), keep=keep)
            manifest = committed.model_dump(mode="json") if committed else None
        self._last_save = time.monotonic()
        return _told(manifest)

    def at_checkpoint_step(self, every_steps: int | None) -> bool:
        """Whether a job that saves every so many steps saves now."""
        return every_steps is not None and self.step % every_steps == 0

    def checkpoint_overdue(self, every_s: float | None) -> bool:
        """Whether the last checkpoint is so old. Only the first rank's clock counts, or one would follow on another."""
        return _is_first() and every_s is not None and time.monotonic() - self._last_save >= every_s


@dataclass(frozen=True, slots=True)
class Position:
    """Where the training stands; everything that a resumed attempt needs besides the tensors."""

    epoch: int = 0
    """Epochs done, and so the number of the one under way."""
    step: int = 0
    """Global batches done since the job began."""
    epoch_start: int = 0
    """The step with which the epoch under way began."""
    best: float | None = None
    """The best validation score so far; the larger the better."""
    best_checkpoint: dict[str, Any] | None = None
    """The manifest that has the best epoch's weights."""
    stale_epochs: int = 0
    """Epochs since the best one."""
    samples: int = 0
    """Samples trained on since the job began."""


class TrainingLoop(JobLoop[Position, P], Generic[Batch, P]):
    """One rank's part of a job, from the first step (or the checkpoint) to the job's result."""

    def __init__(self, context: WorkerContext[P]) -> None:
        super().__init__(context, Position())
        self._owes_checkpoint = False

    @property
    def step(self) -> int:
        """Global batches done since the job began."""
        return self.position.step

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the training data."""

    @abstractmethod
    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """This rank's part of the epoch's global batches, without the first `done`."""

    @abstractmethod
    def train_step(self, batch: Batch) -> torch.Tensor | float:
        """One optimizer step of the whole gang; the mean loss that this rank saw, detached."""

    @abstractmethod
    def samples(self, batch: Batch) -> int:
        """How many samples the whole gang takes in this batch."""

    @abstractmethod
    def score(self, split: Held) -> dict[str, float] | None:
        """Metrics of a split by name, e.g. `validation_loss`; equal on all ranks. None if the split has no data."""

    @abstractmethod
    def export(self) -> None:
        """Leave the trained model to the user; called on all ranks."""

    def objective(self, scores: dict[str, float]) -> float:
        """What early stopping wants to grow: by default the validation loss, negated."""
        return -scores["validation_loss"]

    @property
    def steps(self) -> int:
        """The job's steps, unless it stops early."""
        every_epoch = self.params.epochs * self.steps_per_epoch
        return min(every_epoch, self.params.max_steps or every_epoch)

    @property
    def rate_factor(self) -> float:
        """What the learning rates are multiplied by in the step under way."""
        return self.params.lr_schedule.factor(self.position.step, self.steps)

    def run(self) -> dict[str, float] | None:
        """Train to the end; the job's result, or None if the gang was asked to leave."""
        began = time.monotonic()
        self.resume()
        first_sample = self.position.samples
        self._agreement = Agreement(self.position.step)
        if not self._all_epochs():
            return None
        rate = (self.position.samples - first_sample) / (time.monotonic() - began)
        self._restore_best()
        result = self._final_scores() | {"samples_per_s": rate, "wall_s": time.monotonic() - began}
        self.export()
        return result | {"epochs": float(self.position.epoch), "steps": float(self.position.step)}

    def _all_epochs(self) -> bool:
        """False if the gang was asked to leave."""
        while not self._finished():
            if not self._epoch():
                return False
            self._judge_epoch()
        return True

    def _finished(self) -> bool:
        patience = self.params.early_stopping.patience if self.params.early_stopping else None
        stale = patience is not None and self.position.stale_epochs >= patience
        return stale or self.position.epoch >= self.params.epochs or self._out_of_steps()

    def _out_of_steps(self) -> bool:
        return self.params.max_steps is not None and self.position.step >= self.params.max_steps

    def _epoch(self) -> bool:
        """Train on the rest of the epoch under way; False if the gang was asked to leave."""
        for batch in self.batches(self.position.epoch, self.position.step - self.position.epoch_start):
            self._step(batch)
            decision = self._agreement.after(self.position.step, self._wish)
            wanted = decision.checkpoint or self.at_checkpoint_step(self.params.checkpoint_every_steps)
            # A step has one checkpoint: at an epoch's end it is written with the epoch's judgement in it.
            self._owes_checkpoint = wanted and self._ends_epoch() and not decision.stop
            if wanted and not self._owes_checkpoint:
                self.save()
            if decision.stop:
                return False
            if self._out_of_steps():
                break
        return True

    def _step(self, batch: Batch) -> None:
        samples = self.samples(batch)
        self.context.report(
            self.position.step + 1,
            loss=self.train_step(batch),
            samples=samples,
            steps=self.steps,
            epoch=self.position.epoch + 1,
        )
        self.position = replace(self.position, step=self.position.step + 1, samples=self.position.samples + samples)

    def _ends_epoch(self) -> bool:
        return self.position.step - self.position.epoch_start >= self.steps_per_epoch or self._out_of_steps()

    def _wish(self) -> Decision:
        mode = self.context.stop_requested()
        overdue = self.checkpoint_overdue(self.params.checkpoint_every_s)
        return Decision(stop=mode is not None, checkpoint=mode in (StopMode.PAUSE, StopMode.DRAIN) or overdue)

    def _judge_epoch(self) -> None:
        """Score the validation data, note whether it is the best epoch so far, and begin the next."""
        self.position = replace(self.position, epoch=self.position.epoch + 1, epoch_start=self.position.step)
        scores = self.score("validation")
        if scores is not None:
            self.context.report.evaluated(self.position.step, self.position.epoch, scores)
        before = self.position
        if scores is not None and self._is_best(scores):
            manifest = self.save(keep=True)
            # Weights that were not stored can't be restored: an earlier epoch stays the best one.
            self.position = replace(self.position, best_checkpoint=manifest) if manifest else before
        elif self._owes_checkpoint:
            self.save()
        self._owes_checkpoint = False

    def _is_best(self, scores: dict[str, float]) -> bool:
        """With early stopping, note in the position how these scores compare; whether they are the best so far."""
        if self.params.early_stopping is None:
            return False
        value = self.objective(scores)
        if self.position.best is not None and value <= self.position.best:
            self.position = replace(self.position, stale_epochs=self.position.stale_epochs + 1)
            return False
        self.position = replace(self.position, best=value, stale_epochs=0)
        return True

    def _final_scores(self) -> dict[str, float]:
        """Of the test data where there is any, else of the validation data."""
        test = self.score("test")
        return test if test is not None else self.score("validation") or {}

    def resume(self) -> None:
        """Go back to the checkpoint; one that is the best itself could not name itself when it was written."""
        super().resume()
        manifest = self.context.checkpoints.resume_from
        if manifest is not None and manifest.keep:
            self.position = replace(self.position, best_checkpoint=manifest.model_dump(mode="json"))

    def _restore_best(self) -> None:
        if self.params.early_stopping and self.position.stale_epochs and self.position.best_checkpoint:
            self.load(CheckpointManifest.model_validate(self.position.best_checkpoint))


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _gathered(parts: Sequence[CheckpointPart]) -> list[CheckpointPart]:
    """The parts of all ranks."""
    if not dist.is_initialized():
        return list(parts)
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, list(parts))
    return [part for ones in everyones for part in ones]


def _told(manifest: dict[str, Any] | None) -> dict[str, Any] | None:
    """The first rank's manifest, on every rank."""
    if not dist.is_initialized():
        return manifest
    told = [manifest]
    dist.broadcast_object_list(told, src=0)
    return told[0]
