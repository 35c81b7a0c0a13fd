"""Experiment trackers: other programs that store and show the metrics of jobs.

The command writes jobs to them on request, and the control program by its settings.
"""

from collections.abc import Sequence
from typing import Protocol

from rolecall.spec.api import Checkpoint, Series
from rolecall.spec.job import JobDocument


class Tracker(Protocol):
    """Stores jobs. Its methods block."""

    count: int
    """The number of values that it has stored."""

    def write(self, job: JobDocument, series: Sequence[Series], checkpoints: Sequence[Checkpoint]) -> None:
        """Store what is new of a job, each value once. Raises `TrackerError`."""
        ...

    def forget(self, job: str) -> None:
        """Release what it holds of a job that has ended."""
        ...

    def close(self) -> None: ...
