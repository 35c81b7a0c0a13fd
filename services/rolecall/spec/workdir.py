"""The files through which a node and its worker talk: names only, no I/O.

The worker opens what it writes before it confines itself. From then on it may change nothing here but `scratch`.
"""

from pathlib import Path
from typing import NamedTuple

PROGRESS_BYTES = 16 << 20
"""How much of a worker's progress its node sends to the master."""


class Workdir(NamedTuple):
    """The folder of one worker of one attempt, `<node's data>/work/<job>/<attempt>/<rank>/`."""

    path: Path

    @classmethod
    def of(cls, data: Path, job: str, attempt: int, rank: int) -> "Workdir":
        """The folder of rank `rank` below a node's data folder."""
        return cls(data / "work" / job / str(attempt) / str(rank))

    @property
    def log(self) -> Path:
        """What the worker prints, standard output and error together."""
        return self.path / "log.txt"

    @property
    def progress(self) -> Path:
        """The worker's reports, a `ProgressLine` as JSON on each line."""
        return self.path / "progress.jsonl"

    @property
    def failure(self) -> Path:
        """The worker's `Failure`, written before the process ends; empty until then."""
        return self.path / "failure.json"

    @property
    def beat(self) -> Path:
        """Touched by a thread of the worker every half second."""
        return self.path / "beat"

    @property
    def stop(self) -> Path:
        """Made by the node when the worker should leave between two steps; holds the `StopMode`."""
        return self.path / "stop"

    @property
    def rendezvous(self) -> Path:
        """Made by the node once the gang's port is known; holds the port. Rank 0 needs none: it reports it."""
        return self.path / "rendezvous"

    @property
    def scratch(self) -> Path:
        """For the worker's own temporary files; the node opens none of them."""
        return self.path / "scratch"
