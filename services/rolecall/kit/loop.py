"""The training loop of jobs with epochs: progress, evaluation, early stopping and stop requests.

Subclasses define the model and the step.
"""

import logging
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Generic, Literal, TypeVar

import torch

from rolecall.kit.job_loop import JobLoop
from rolecall.kit.params import TrainingParams
from rolecall.logs import about
from rolecall.runtime.agreement import Agreement, Decision
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import InputError, NonFiniteLoss
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.state import StopMode

_LOG = logging.getLogger(__name__)
Batch = TypeVar("Batch")
P = TypeVar("P", bound=TrainingParams)
EvalSplit = Literal["validation", "test"]
"""A split that is evaluated and never trained on."""


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
    def train_step(self, batch: Batch) -> torch.Tensor | float | None:
        """One optimizer step of all ranks. Returns the mean loss on this rank, detached; None without samples."""

    @abstractmethod
    def samples(self, batch: Batch) -> int:
        """Samples in this global batch, over all ranks."""

    @abstractmethod
    def evaluate(self, split: EvalSplit) -> dict[str, float] | None:
        """Metrics of a split by name, such as `validation_loss`, equal on all ranks; None if the split is empty."""

    @abstractmethod
    def export(self) -> None:
        """Store the trained model as an artifact; called on all ranks."""

    def settle(self) -> None:
        """Complete what the steps so far have begun.

        Called on all ranks before an evaluation, a checkpoint and a stop.
        """

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

    def has_finite_weights(self) -> bool:
        """False if this rank finds a weight that is NaN or infinite; by default True.

        Called on all ranks before the trained model is evaluated and exported. Each weight needs only one rank.
        """
        return True

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
            self._log_epoch(self.position.samples - epoch_first, seconds, scores)
            epoch, stale = self.position.epoch, self.position.stale_epochs
            is_early = epoch < self.params.epochs and not self._out_of_steps()
            if self._is_stale() and is_early and self.context.role_rank == 0:
                self.context.report.event(f"early stopping after epoch {epoch}: {stale} epochs without a better score")
        rate = (self.position.samples - first_sample) / (self._clock() - began)
        with self.finishing("evaluating and exporting the model"):
            result = self._finish(rate, began)
        return result | {"epochs": float(self.position.epoch), "steps": float(self.position.step)}

    def _finish(self, rate: float, began: float) -> dict[str, float]:
        """Evaluate the trained model and export it. Returns the scores, the rate, and the time since `began`.

        Raises `NonFiniteLoss` if a weight is NaN or infinite.
        """
        if self.params.early_stopping and self.position.stale_epochs and self.position.best_checkpoint:
            self.load(CheckpointManifest.model_validate(self.position.best_checkpoint))
        # No later loss shows what the last step did.
        if not self.has_finite_weights():
            raise NonFiniteLoss("the trained weights are NaN or infinite; lower the learning rate or check the input")
        with self.context.timeline.span("evaluate", "evaluation"):
            metrics = self.evaluate("test")
            if metrics is None:
                metrics = self.evaluate("validation") or {}
        result = metrics | {"samples_per_s": rate, "wall_s": self._clock() - began}
        self.export()
        return result

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
            steps = self.position.step - self.position.epoch_start
            ends_epoch = steps >= self.steps_per_epoch or self._out_of_steps()
            self._checkpoint_pending = due and ends_epoch and not decision.stop
            if due or decision.stop:
                self.settle()
            if due and not self._checkpoint_pending:
                self.save()
            if decision.stop:
                return False
            if self._out_of_steps():
                break
        self.settle()
        return True

    def _run_step(self, batch: Batch) -> None:
        """Train on a batch, report the step, and advance the position."""
        samples = self.samples(batch)
        if (loss := self.train_step(batch)) is not None:
            self._last_loss = loss
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

    def _local_decision(self) -> Decision:
        mode = self.context.stop_requested()
        overdue = self.checkpoint_overdue(self.params.checkpoint_every_s)
        return Decision(stop=mode is not None, checkpoint=mode in (StopMode.PAUSE, StopMode.DRAIN) or overdue)

    def _finish_epoch(self) -> dict[str, float]:
        """Report the epoch's metrics and scores, keep the checkpoint of the best epoch, and advance to the next epoch.

        Returns the scores of the validation data. Raises `InputError` if early stopping gets no score, and
        `NonFiniteLoss` if no score so far is finite.
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

    def _log_epoch(self, samples: int, seconds: float, scores: Mapping[str, float]) -> None:
        if self._take_log_turn(is_last=self._finished()):
            # To read the loss waits for its device, so it is done only for a line. An attempt that resumes from the
            # last step of an epoch has neither a loss nor a rate yet.
            losses = {} if self._last_loss is None else {"loss": float(self._last_loss)}
            figures = [f"{name} {value:.4g}" for name, value in (losses | dict(scores)).items()]
            if samples and seconds:
                figures.append(f"{samples / seconds:,.0f} samples/s")
            text = "epoch %d of %d ended: %s"
            number, shown = self.position.epoch, ", ".join(figures) or "no scores"
            _LOG.info(text, number, self.params.epochs, shown, extra=about("epoch_ended"))

    def _update_best(self, metrics: dict[str, float]) -> bool:
        """With early stopping, update the best value in the position. Returns whether it improved."""
        if self.params.early_stopping is None:
            return False
        value, best = self.objective(metrics), self.position.best
        # Weights that are NaN have a NaN loss, but can have a finite accuracy or AUC, even the highest one.
        is_finite = all(map(math.isfinite, (value, metrics.get("validation_loss", value))))
        if best is None and not is_finite:
            scores = ", ".join(f"{name} {score:.4g}" for name, score in metrics.items())
            raise NonFiniteLoss(
                f"early_stopping has no finite score after epoch {self.position.epoch}: {scores}; lower "
                "the learning rate or check the input"
            )
        if best is not None and not (is_finite and value > best):
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
