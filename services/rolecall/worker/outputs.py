"""Where a worker writes what its node reads. The sandbox lets it open nothing there, so all is opened before."""

import os
from dataclasses import dataclass
from typing import Self

from rolecall.runtime.beat import open_beat
from rolecall.runtime.reporter import Reporter
from rolecall.spec.report import Failure
from rolecall.spec.workdir import Workdir
from rolecall.untrusted_files import open_regular


@dataclass(frozen=True, slots=True)
class Outputs:
    """Open files in the worker's folder. Its log is open already, as standard output and error."""

    report: Reporter
    beat: int
    """See `runtime.beat`."""
    failure: int
    """Empty until the worker fails."""

    @classmethod
    def open(cls, workdir: Workdir) -> Self:
        """Must come before the worker confines itself. Raises `OSError`, e.g. when the disk is full."""
        failure = open_regular(workdir.failure, os.O_WRONLY | os.O_CREAT)
        return cls(Reporter(workdir.progress), open_beat(workdir.beat), failure)

    def fail(self, failure: Failure) -> None:
        """Leave word why the worker ends; its node reads it when the process has ended."""
        with os.fdopen(self.failure, "w") as file:
            file.write(failure.model_dump_json())
