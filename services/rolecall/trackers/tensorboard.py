"""Jobs as TensorBoard's event files: a run for each worker of each attempt."""

import json
import logging
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from rolecall.spec.api import COORDINATES, Checkpoint, Series
from rolecall.spec.errors import MissingPackage, TrackerError
from rolecall.spec.job import JobDocument

_MAX_WRITERS = 64
_MAX_NAMES = 1000
"""The maximum number of different values of a run. A job's code can report any number of names."""


def require_packages() -> None:
    """Raises `MissingPackage`."""
    _writer_type()


class EventFiles:
    """Writes each worker's metrics to a run of its own, each value of a step once."""

    def __init__(self, folder: Path) -> None:
        """Raises `MissingPackage`."""
        self._writer_type = _writer_type()
        self._folder = folder
        self._writers = OrderedDict[Path, Any]()
        """The open writers by run, the least recently used one first. Each has a file and a thread."""
        self._opened = 0
        self._steps: dict[str, dict[Path, dict[str, int]]] = {}
        """The newest step of each value of each run, by job."""
        self.count = 0

    def write(self, job: JobDocument, series: Sequence[Series], checkpoints: Sequence[Checkpoint]) -> None:
        """Write the steps that are later than those of the call before. Raises `TrackerError`.

        TensorBoard has no place for `checkpoints`.
        """
        try:
            self._describe(job)
            for one in series:
                self._add(job.id, one)
        except OSError as error:
            raise TrackerError(f"the event files in {self._folder} can't be written: {error}") from None

    def forget(self, job: str) -> None:
        """Close the files of a job."""
        for run in self._steps.pop(job, {}).keys() & self._writers.keys():
            self._writers.pop(run).close()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _describe(self, document: JobDocument) -> None:
        """Write the job's request and, when it has ended, its result as texts of the job's own run."""
        run = self._folder / document.id
        given = document.model_dump(mode="json", include={"workload", "name", "labels", "roles", "params"})
        texts = {"request": given} | ({"result": document.result} if document.result else {})
        written = self._steps_of(document.id, run)
        for tag in [tag for tag in texts if tag not in written]:
            indented = "\n".join(f"    {line}" for line in json.dumps(texts[tag], indent=2).splitlines())
            self._writer(run).add_text(tag, indented)
            written[tag] = 0

    def _add(self, job: str, series: Series) -> None:
        run = self._folder / job / f"attempt-{series.attempt}" / f"{series.role}-{series.role_rank}"
        written = self._steps_of(job, run)
        for point in series.points:
            step, at = point["step"], datetime.fromisoformat(point["at"]).timestamp() if "at" in point else None
            for name, value in point.items():
                # The scores of an evaluation are a second point of its step.
                if name in COORDINATES or not isinstance(value, int | float) or step <= written.get(name, -1):
                    continue
                if name in written or len(written) < _MAX_NAMES:
                    self._writer(run).add_scalar(name, value, step, at)
                    written[name] = step
                    self.count += 1

    def _steps_of(self, job: str, run: Path) -> dict[str, int]:
        """The newest step of each value of a run. A new run replaces the files that another object wrote."""
        runs = self._steps.setdefault(job, {})
        if run not in runs:
            for old in run.glob("events.out.tfevents.*"):
                old.unlink()
            runs[run] = {}
        return runs[run]

    def _writer(self, run: Path) -> Any:
        if run not in self._writers:
            if len(self._writers) >= _MAX_WRITERS:
                self._writers.popitem(last=False)[1].close()
            self._opened += 1
            # The library's names of files have only seconds, and it overwrites a file of the same name.
            self._writers[run] = self._writer_type(str(run), flush_secs=1, filename_suffix=f".{self._opened}")
        self._writers.move_to_end(run)
        return self._writers[run]


def _writer_type() -> Any:
    logging.getLogger("tensorboardX").setLevel(logging.WARNING)  # It logs each name that it has to change.
    try:
        return import_module("tensorboardX").SummaryWriter
    except ImportError:
        raise MissingPackage(
            "event files need the package tensorboardX; install it: pip install 'rolecall[tensorboard]'"
        ) from None
