"""A worker's progress, as JSON lines that its node reads."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from rolecall.spec.errors import NonFiniteLoss
from rolecall.spec.report import ProgressLine, TimeSpent
from rolecall.spec.workdir import PROGRESS_BYTES

_WRITE_EVERY_S = 0.5
_RATE_WINDOW_S = 10.0
_ALWAYS = frozenset({"rendezvous", "joined", "first_step", "result"})


@dataclass(frozen=True, slots=True)
class _Step:
    step: int
    loss: float | torch.Tensor | None
    steps: int | None
    epoch: int | None
    metrics: dict[str, float | torch.Tensor]
    spent: Callable[[], TimeSpent] | None


class Reporter:
    """Writes progress lines: at most two per second for steps, always the last step, and all lines of other kinds.

    The node sends up to `PROGRESS_BYTES`. The more is written, the longer the interval between steps becomes. Near the
    limit, only lines that the job depends on are written.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self._file = path.open("a", buffering=1)
        self._written = 0
        self._next_write = 0.0
        self._first_step_reported = False
        self._unwritten: _Step | None = None
        self._rate = _Rate()

    def __call__(
        self,
        step: int,
        *,
        loss: float | torch.Tensor | None,
        samples: int = 0,
        steps: int | None = None,
        epoch: int | None = None,
        metrics: Mapping[str, float | torch.Tensor] | None = None,
        spent: Callable[[], TimeSpent] | None = None,
    ) -> None:
        """Report the end of `step` (counted from 1), with its mean loss, the gang's samples in it, and other metrics.

        `loss` is None if this worker had none of the step's samples. Raises `NonFiniteLoss` if it is NaN or infinite. A
        loss on a GPU is checked and metrics are read only when a line is due, because reading a tensor waits for its
        device; `spent` is called then, too.
        """
        now = self._clock()
        self._rate.add(now, samples)
        if loss is not None and not (isinstance(loss, torch.Tensor) and loss.is_cuda):
            loss = float(loss)
            _require_finite(loss, step)
        self._unwritten = _Step(step, loss, steps, epoch, dict(metrics or {}), spent)
        if now >= self._next_write:
            self._next_write = now + interval_s(self._written)
            self._write_step()

    def _write_step(self) -> None:
        if (last := self._unwritten) is None:
            return
        self._unwritten = None
        losses = {} if last.loss is None else {"loss": float(last.loss)}
        for loss in losses.values():
            _require_finite(loss, last.step)
        now = self._clock()
        kind = "step" if self._first_step_reported else "first_step"
        self._first_step_reported = True
        self._write(
            kind=kind,
            step=last.step,
            steps=last.steps,
            epoch=last.epoch,
            samples_per_s=self._rate.samples_per_s(now),
            seconds_left=self._rate.seconds_left(now, last.steps - last.step) if last.steps is not None else None,
            metrics=losses | {name: float(value) for name, value in last.metrics.items()},
            spent=last.spent() if last.spent else None,
        )

    def event(self, message: str) -> None:
        """Report a message for users, in one line."""
        self._write(kind="event", message=message)

    def evaluated(self, step: int, epoch: int | None, metrics: Mapping[str, float]) -> None:
        """Report the metrics of an evaluation, such as `validation_auc`, and of the epoch that it ends."""
        self.write("step", step=step, epoch=epoch, metrics=dict(metrics))

    def finishing(self, step: int, work: str) -> None:
        """Report that `step` was the last one, and the work that follows, such as `exporting the model`."""
        self._write_step()
        if self._first_step_reported:
            # Training may end before the last planned step, and then it has no more steps than these.
            self._write(kind="step", step=step, steps=step, seconds_left=0.0)
        self.event(f"training ended at step {step}; {work}")

    def finished(self, step: int, spent: TimeSpent) -> None:
        """Report the use of the time until the end of the work after the last step.

        Nothing is written if this attempt had no step, because its time then counts as that of its start.
        """
        self._write_step()
        if self._first_step_reported:
            self._write(kind="step", step=step, spent=spent)

    def result(self, metrics: Mapping[str, float]) -> None:
        """Report the workload's final metrics, which become the job's `result`."""
        self.write("result", metrics=dict(metrics))

    def rendezvous(self, port: int) -> None:
        """Report the port of the gang's store, as rank 0."""
        self._write(kind="rendezvous", port=port)

    def joined(self) -> None:
        """Report that this worker has joined the gang."""
        self._write(kind="joined")

    def close(self) -> None:
        """Write the last step, and close the file."""
        with self._file:
            self._write_step()

    def write(self, kind: str, **fields: object) -> None:
        """Write the newest step and then a line with these fields of `ProgressLine`."""
        self._write_step()
        self._write(kind=kind, **fields)

    def _write(self, **fields: object) -> None:
        """Append a line to the progress file. Leaves out lines about steps when the file is almost full."""
        line = ProgressLine(at=self._wall_clock(), **fields)  # type: ignore[arg-type]
        text = line.model_dump_json(exclude_none=True, exclude_defaults=True) + "\n"
        size = len(text.encode())
        if line.kind in _ALWAYS or self._written + size < PROGRESS_BYTES * 7 // 8:
            self._file.write(text)
            self._written += size


def interval_s(written: int) -> float:
    """The interval between two lines about steps: it doubles with each 24th of `PROGRESS_BYTES` beyond a quarter."""
    return _WRITE_EVERY_S * 2 ** max(0, 24 * written // PROGRESS_BYTES - 6)


def _require_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"the loss is {loss} at step {step}; lower the learning rate or check the input")


class _Rate:
    """Steps and samples per second over a sliding window, so that a pause for evaluation has a temporary effect."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()
        self._samples = 0

    def add(self, now: float, samples: int) -> None:
        self._marks.append((now, samples))
        self._samples += samples
        # Of steps that are longer than the window, the last two remain: they have a rate, too.
        while len(self._marks) > 2 and self._marks[0][0] < now - _RATE_WINDOW_S:
            self._samples -= self._marks.popleft()[1]

    def samples_per_s(self, now: float) -> float | None:
        begin, first = self._marks[0]
        # The first step ends when its mark is set, so its samples say nothing about the time since.
        return (self._samples - first) / (now - begin) if len(self._marks) > 1 and now > begin else None

    def seconds_left(self, now: float, steps: int) -> float | None:
        passed = now - self._marks[0][0]
        return steps * passed / (len(self._marks) - 1) if len(self._marks) > 1 else None
