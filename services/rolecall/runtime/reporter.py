"""A worker's progress, as JSON lines that its node reads."""

import math
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

import torch

from rolecall.spec.errors import NonFiniteLoss
from rolecall.spec.report import ProgressLine

_WRITE_EVERY_S = 0.5
_RATE_WINDOW_S = 10.0


class Reporter:
    """Writes progress lines: at most two a second for steps, every one of the other kinds."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._next_write = 0.0
        self._first_step_told = False
        self._rate = _Rate()

    def __call__(
        self,
        step: int,
        *,
        loss: float | torch.Tensor,
        samples: int = 0,
        steps: int | None = None,
        epoch: int | None = None,
        **metrics: float,
    ) -> None:
        """Report that `step` (counted from 1) is done, with its mean loss and the samples that the gang took in it.

        Raises `NonFiniteLoss` when the loss is NaN or infinite. A loss on a GPU is looked at only when a line is due,
        because reading it waits for the device.
        """
        now = time.monotonic()
        self._rate.add(now, samples)
        due = now >= self._next_write
        if not due and isinstance(loss, torch.Tensor) and loss.is_cuda:
            return
        value = float(loss)
        if not math.isfinite(value):
            raise NonFiniteLoss(f"the loss is {value} at step {step}; lower the learning rate or check the input")
        if due:
            self._next_write = now + _WRITE_EVERY_S
            self._write_step(step, steps, epoch, {"loss": value, **metrics}, now)

    def _write_step(
        self, step: int, steps: int | None, epoch: int | None, metrics: dict[str, float], now: float
    ) -> None:
        left = self._rate.seconds_left(now, steps - step) if steps is not None else None
        kind = "step" if self._first_step_told else "first_step"
        self._first_step_told = True
        self._write(
            kind=kind,
            step=step,
            steps=steps,
            epoch=epoch,
            samples_per_s=self._rate.samples_per_s(now),
            seconds_left=left,
            metrics=metrics,
        )

    def event(self, message: str) -> None:
        """Tell people something that is not a number, in one line."""
        self._write(kind="event", message=message)

    def evaluated(self, step: int, epoch: int, **metrics: float) -> None:
        """Report what an evaluation found, e.g. `validation_auc`."""
        self._write(kind="step", step=step, epoch=epoch, metrics=metrics)

    def result(self, **metrics: float) -> None:
        """The workload's final metrics, which become the job's `result`."""
        self._write(kind="result", metrics=metrics)

    def rendezvous(self, port: int) -> None:
        """Rank 0's word where the gang's store listens."""
        self._write(kind="rendezvous", port=port)

    def joined(self) -> None:
        """This worker is part of the gang."""
        self._write(kind="joined")

    def close(self) -> None:
        """Nothing can be reported after this."""
        self._file.close()

    def _write(self, **fields: object) -> None:
        line = ProgressLine(at=datetime.now(UTC), **fields)  # type: ignore[arg-type]
        self._file.write(line.model_dump_json(exclude_none=True, exclude_defaults=True) + "\n")


class _Rate:
    """Steps and samples per second over a sliding window, so that a pause for evaluation passes out of it."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()
        self._samples = 0

    def add(self, now: float, samples: int) -> None:
        self._marks.append((now, samples))
        self._samples += samples
        while self._marks[0][0] < now - _RATE_WINDOW_S:
            self._samples -= self._marks.popleft()[1]

    def samples_per_s(self, now: float) -> float | None:
        begin, first = self._marks[0]
        return (self._samples - first) / (now - begin) if now > begin else None

    def seconds_left(self, now: float, steps: int) -> float | None:
        passed = now - self._marks[0][0]
        return steps * passed / (len(self._marks) - 1) if len(self._marks) > 1 else None
