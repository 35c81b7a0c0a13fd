"""Training loops: position, checkpoints and result of any job; epochs, progress, early stopping and stop requests.

All ranks of the default process group run the loop in lockstep. Without a process group, a single driver runs it.
Subclasses define the model and the step.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
import torch.distributed as dist

from rolecall.edge.logs import about
from rolecall.kit.params import TrainingParams
from rolecall.runtime.agreement import Agreement, Decision
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import InputError, Stopped
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.report import TimeSpent
from rolecall.spec.state import StopMode
from rolecall.spec.timeline import STEP_CATEGORIES
from rolecall.spec.workload import Params

_LOG = logging.getLogger(__name__)
_LOG_EVERY_S = 5.0
"""The interval between two lines about progress in a worker's log. Short epochs must not fill it."""
_SPENT = "spent"
"""The key of the time spent so far in a checkpoint."""
Batch = TypeVar("Batch")
AnyParams = TypeVar("AnyParams", bound=Params)
P = TypeVar("P", bound=TrainingParams)
EvalSplit = Literal["validation", "test"]
"""A split that is evaluated and never trained on."""


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

    def spent(self) -> TimeSpent:
        """The time of this job until now, without what was lost with earlier attempts."""
        seconds, before = self.context.timeline.seconds(), self._resumed
        now = {activity: seconds[activity] - self._began[activity] for activity in seconds}
        return TimeSpent(
            steps=before.steps + sum(now[category] for category in STEP_CATEGORIES),
            data=round(before.data + now["data"], 3),
            communication=round(before.communication + now["communication"], 3),
            wait=round(before.wait + now["wait"], 3),
            checkpoint=before.checkpoint + now["checkpoint"],
            evaluation=before.evaluation + now["evaluation"],
            resumed=before.steps + before.checkpoint + before.evaluation,
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


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """State of an epoch-based training that a resumed attempt needs, besides the tensors."""

    epoch: int = 0
    """Epochs completed; also the index of the current one."""
    step: int = 0
    """Global batches since the start of the job."""
    epoch_start: int = 0
    """The step at which the current epoch started."""
    best: float | None = None
    """The best value of `objective` so far; larger is better."""
    best_checkpoint: dict[str, Any] | None = None
    """The manifest of the best epoch's weights."""
    stale_epochs: int = 0
    """Epochs since the best one."""
    samples: int = 0
    """Samples trained on since the start of the job."""


class TrainingLoop(JobLoop[EpochPosition, P], Generic[Batch, P]):
    """One rank's share of an epoch-based training job."""

    def __init__(self, context: WorkerContext[P], *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(context, EpochPosition(), clock=clock)
        self._checkpoint_pending = False
        self._last_loss: torch.Tensor | float | None = None
        self._lookahead: Lookahead[Batch] | None = None

    @property
    def step(self) -> int:
        """Global batches since the start of the job."""
        return self.position.step

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the training data."""

    @abstractmethod
    def batches(self, epoch: int, done: int) -> Iterator[Batch]:
        """This rank's share of the epoch's global batches, without the first `done`."""

    @abstractmethod
    def train_step(self, batch: Batch) -> torch.Tensor | float:
        """One optimizer step of all ranks. Returns the mean loss on this rank, detached."""

    @abstractmethod
    def samples(self, batch: Batch) -> int:
        """Samples in this global batch, over all ranks."""

    @abstractmethod
    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """Metrics of a split by name, such as `validation_loss`, equal on all ranks; None if the split is empty."""

    @abstractmethod
    def export(self) -> None:
        """Store the trained model as an artifact; called on all ranks."""

    def prepare_next(self) -> None:
        """Get the next batch of the epoch ahead; `train_step` can call this where it would wait."""
        if self._lookahead is not None:
            self._lookahead.prepare()

    def step_metrics(self) -> Mapping[str, float | torch.Tensor]:
        """Further metrics of the last step by name, for its report; by default none."""
        return {}

    def epoch_metrics(self) -> Mapping[str, float]:
        """Further metrics of the steps of the epoch that has just ended, by name; by default none.

        Called on all ranks, before the epoch's evaluation.
        """
        return {}

    def objective(self, metrics: dict[str, float]) -> float:
        """The value that early stopping maximizes: by default the negated validation loss."""
        return -metrics["validation_loss"]

    @property
    def steps(self) -> int:
        """Total steps of the job, unless it stops early."""
        every_epoch = self.params.epochs * self.steps_per_epoch
        return min(every_epoch, self.params.max_steps or every_epoch)

    @property
    def rate_factor(self) -> float:
        """The learning rate multiplier of the current step."""
        return self.params.lr_schedule.factor(self.position.step, self.steps)

    def run(self) -> dict[str, float] | None:
        """Train to the end. Returns the job's result, or None after a stop request."""
        began = self._clock()
        self.resume()
        first_sample = self.position.samples
        self._agreement = Agreement(self.position.step)
        while not self._finished():
            epoch_began, epoch_first = self._clock(), self.position.samples
            if not self._train_epoch():
                return None
            if self.context.device.type == "cuda":
                torch.cuda.synchronize(self.context.device)  # It can be steps behind, which would be too high a rate.
            seconds = self._clock() - epoch_began
            scores = self._finish_epoch()
            self._log_epoch((self.position.samples - epoch_first) / max(seconds, 1e-9), scores)
            epoch, stale = self.position.epoch, self.position.stale_epochs
            is_early = epoch < self.params.epochs and not self._out_of_steps()
            if self._is_stale() and is_early and self.context.role_rank == 0:
                self.context.report.event(f"early stopping after epoch {epoch}: {stale} epochs without a better score")
        rate = (self.position.samples - first_sample) / (self._clock() - began)
        if self.params.early_stopping and self.position.stale_epochs and self.position.best_checkpoint:
            self.load(CheckpointManifest.model_validate(self.position.best_checkpoint))
        with self.context.timeline.span("evaluate", "evaluation"):
            metrics = self.evaluate("test")
            if metrics is None:
                metrics = self.evaluate("validation") or {}
        result = metrics | {"samples_per_s": rate, "wall_s": self._clock() - began}
        self.export()
        return result | {"epochs": float(self.position.epoch), "steps": float(self.position.step)}

    def _is_stale(self) -> bool:
        early_stopping = self.params.early_stopping
        return early_stopping is not None and self.position.stale_epochs >= early_stopping.patience

    def _finished(self) -> bool:
        return self._is_stale() or self.position.epoch >= self.params.epochs or self._out_of_steps()

    def _out_of_steps(self) -> bool:
        return self.params.max_steps is not None and self.position.step >= self.params.max_steps

    def _train_epoch(self) -> bool:
        """Train on the rest of the current epoch. Returns False after a stop request."""
        self._lookahead = Lookahead(self.batches(self.position.epoch, self.position.step - self.position.epoch_start))
        for batch in self.context.timeline.steps(self._lookahead, first=self.position.step + 1):
            self._run_step(batch)
            decision = self._agreement.after(self.position.step, self._local_decision)
            due = decision.checkpoint or self.at_checkpoint_step(self.params.checkpoint_every_steps)
            # A step has one checkpoint. The one at the end of an epoch must contain the epoch's evaluation.
            self._checkpoint_pending = due and self._ends_epoch() and not decision.stop
            if due and not self._checkpoint_pending:
                self.save()
            if decision.stop:
                return False
            if self._out_of_steps():
                break
        return True

    def _run_step(self, batch: Batch) -> None:
        samples = self.samples(batch)
        loss = self._last_loss = self.train_step(batch)
        self.context.report(
            self.position.step + 1,
            loss=loss,
            samples=samples,
            steps=self.steps,
            epoch=self.position.epoch + 1,
            metrics=self.step_metrics(),
            spent=self.spent,
        )
        self.position = replace(self.position, step=self.position.step + 1, samples=self.position.samples + samples)

    def _ends_epoch(self) -> bool:
        return self.position.step - self.position.epoch_start >= self.steps_per_epoch or self._out_of_steps()

    def _local_decision(self) -> Decision:
        mode = self.context.stop_requested()
        overdue = self.checkpoint_overdue(self.params.checkpoint_every_s)
        return Decision(stop=mode is not None, checkpoint=mode in (StopMode.PAUSE, StopMode.DRAIN) or overdue)

    def _finish_epoch(self) -> dict[str, float]:
        """Report the epoch's metrics and scores, keep the checkpoint of the best epoch, and advance to the next epoch.

        Returns the scores of the validation data. Raises `InputError` if early stopping gets no score.
        """
        self.position = replace(self.position, epoch=self.position.epoch + 1, epoch_start=self.position.step)
        reported = dict(self.epoch_metrics())
        with self.context.timeline.span("evaluate", "evaluation"):
            metrics = self.evaluate("validation")
        if metrics is None and self.params.early_stopping is not None:
            raise InputError(
                "early_stopping needs a validation score, but the validation data is empty or too short for one; "
                "provide more of it, or omit early_stopping"
            )
        reported |= metrics or {}
        if reported:
            self.context.report.evaluated(self.position.step, self.position.epoch, reported)
        before = self.position
        if metrics is not None and self._update_best(metrics):
            manifest = self.save(keep=True)
            # Weights that were not stored can't be restored, so an earlier epoch remains the best one.
            self.position = replace(self.position, best_checkpoint=manifest) if manifest else before
        elif self._checkpoint_pending:
            self.save()
        self._checkpoint_pending = False
        return metrics or {}

    def _log_epoch(self, samples_per_s: float, scores: Mapping[str, float]) -> None:
        if self._take_log_turn(is_last=self._finished()):
            # To read the loss waits for its device, so it is done only for a line. An attempt that resumes from the
            # last step of an epoch has none yet.
            losses = {} if self._last_loss is None else {"loss": float(self._last_loss)}
            figures = "".join(f"{name} {value:.4g}, " for name, value in (losses | dict(scores)).items())
            text = "epoch %d of %d ended: %s%s samples/s"
            number, rate = self.position.epoch, f"{samples_per_s:,.0f}"
            _LOG.info(text, number, self.params.epochs, figures, rate, extra=about("epoch_ended"))

    def _update_best(self, metrics: dict[str, float]) -> bool:
        """With early stopping, update the best value in the position. Returns whether it improved."""
        if self.params.early_stopping is None:
            return False
        value = self.objective(metrics)
        if self.position.best is not None and value <= self.position.best:
            self.position = replace(self.position, stale_epochs=self.position.stale_epochs + 1)
            return False
        self.position = replace(self.position, best=value, stale_epochs=0)
        return True

    def resume(self) -> None:
        """Restore the checkpoint that this attempt resumes from, if any."""
        super().resume()
        # The best checkpoint can't contain its own manifest.
        manifest = self.context.checkpoints.resume_from
        if manifest is not None and manifest.keep:
            self.position = replace(self.position, best_checkpoint=manifest.model_dump(mode="json"))


class Lookahead(Iterator[Batch]):
    """An iterator whose next item can be computed ahead."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._ready: list[Batch] = []

    def prepare(self) -> None:
        """Compute the next item now, if there is one."""
        if not self._ready:
            self._ready.extend(islice(self._batches, 1))

    def __next__(self) -> Batch:
        return self._ready.pop() if self._ready else next(self._batches)


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
