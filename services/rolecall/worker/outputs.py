"""The files through which a worker reports to its node.

They are opened before the worker restricts itself, because the sandbox does not allow it later.
"""

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from rolecall.runtime.reporter import Reporter
from rolecall.spec.report import Failure
from rolecall.spec.timeline import Window
from rolecall.spec.workdir import Workdir
from rolecall.untrusted_files import open_regular

_BEAT_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Outputs:
    """Open files in the worker's folder. Its log is open already, as standard output and error."""

    report: Reporter
    beat: int
    """The file whose time stamp is the worker's heartbeat."""
    failure: int
    """Empty until the worker fails."""
    answer: int
    """The answer to the newest inspection."""
    timeline: int
    """Empty until the role ends."""
    measurements: int
    """The worker's measurements of itself."""

    @classmethod
    def open(cls, workdir: Workdir) -> Self:
        """Call it before the worker restricts itself. Raises `OSError`, for example if the disk is full."""
        failure = open_regular(workdir.failure, os.O_WRONLY | os.O_CREAT)
        beat = open_regular(workdir.beat, os.O_WRONLY | os.O_CREAT)
        answer = open_regular(workdir.answer, os.O_WRONLY | os.O_CREAT)
        timeline = open_regular(workdir.timeline, os.O_WRONLY | os.O_CREAT)
        measurements = open_regular(workdir.measurements, os.O_WRONLY | os.O_CREAT)
        return cls(Reporter(workdir.progress), beat, failure, answer, timeline, measurements)

    def fail(self, failure: Failure) -> None:
        """Write the failure, which the node reads after the end of the process."""
        with os.fdopen(self.failure, "w") as file:
            file.write(failure.model_dump_json())

    def leave(self, window: Window) -> None:
        """Write the last window of the timeline, which the node sends after the end of the process.

        Without space on the disk, the worker ends without it.
        """
        with suppress(OSError), os.fdopen(self.timeline, "w") as file:
            file.write(window.model_dump_json())


def start_beating(beat: int) -> None:
    """Touch the file `beat` every half second in a separate thread.

    The heartbeat stops when the process is stopped, but not while a call blocks.
    """
    os.utime(beat)

    def keep_beating() -> None:
        while True:
            time.sleep(_BEAT_EVERY_S)
            os.utime(beat)

    threading.Thread(target=keep_beating, name="beat", daemon=True).start()
