"""The files with which a node and its worker communicate: names only, no I/O.

The worker opens its output files before it restricts itself. After that, it can change nothing else but `scratch`.
"""

from pathlib import Path
from typing import NamedTuple

PROGRESS_BYTES = 16 << 20
"""The maximum size of a progress file that the node sends to the master."""
ANSWER_HEADER = 48
"""Bytes for two decimal numbers, padded with spaces. They are written last, so that the answer is then complete."""


class Workdir(NamedTuple):
    """The folder of one worker of one attempt, `<node's data>/work/<job>/<attempt>/<rank>/`."""

    path: Path

    @classmethod
    def of(cls, data: Path, job: str, attempt: int, rank: int) -> "Workdir":
        """The folder of rank `rank` below a node's data folder."""
        return cls(data / "work" / job / str(attempt) / str(rank))

    @property
    def log(self) -> Path:
        """The worker's standard output and error."""
        return self.path / "log.txt"

    @property
    def progress(self) -> Path:
        """The worker's progress: one `ProgressLine` as JSON per line."""
        return self.path / "progress.jsonl"

    @property
    def failure(self) -> Path:
        """The worker's `Failure`, written before the process ends; empty until then."""
        return self.path / "failure.json"

    @property
    def beat(self) -> Path:
        """The heartbeat: a thread of the worker touches this file every half second."""
        return self.path / "beat"

    @property
    def inspection(self) -> Path:
        """The newest `Inspection` of the worker, written by the node."""
        return self.path / "inspection.json"

    @property
    def answer(self) -> Path:
        """The worker's answer to it: a header of `ANSWER_HEADER` bytes with id and size, then an `Answer`."""
        return self.path / "answer"

    @property
    def timeline(self) -> Path:
        """The `Window` that the worker leaves when its role ends; empty until then."""
        return self.path / "timeline.json"

    @property
    def measurements(self) -> Path:
        """The worker's measurements: values by metric and label (`spec.metric`), as JSON that it replaces."""
        return self.path / "measurements.json"

    @property
    def stop(self) -> Path:
        """The stop request: the node creates this file, which contains the `StopMode`."""
        return self.path / "stop"

    @property
    def rendezvous(self) -> Path:
        """The gang's port, which the node writes once it is known. Rank 0 reports the port and has no such file."""
        return self.path / "rendezvous"

    @property
    def scratch(self) -> Path:
        """The folder for the worker's temporary files. The node opens none of them."""
        return self.path / "scratch"
