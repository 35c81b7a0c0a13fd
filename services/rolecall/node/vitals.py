"""The state of a worker's process: stopped, hung or ended."""

import os
import signal
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rolecall.process import describe_exit
from rolecall.spec.inspection import STACKS_SIGNAL
from rolecall.spec.report import Failure
from rolecall.spec.state import STOPPED_STATUS, WorkerState

STOPPED_S = 3.0
"""The time for which a process may be stopped (SIGSTOP, a debugger) before it counts as hung."""


@dataclass(slots=True)
class Vitals:
    """Detects a hung process by its state and its heartbeats.

    A hung worker blocks its whole gang. Times are monotonic, so that a correction of the wall clock kills nobody.
    """

    timeout_s: float
    stopped_since: float | None = None
    beat: int | None = None
    beat_at: float | None = None

    def observe(self, state: str | None, beat: int | None, now: float) -> str | None:
        """Record the process's state and the time stamp of its heartbeat; return why it counts as hung, if it does."""
        self.stopped_since = (self.stopped_since or now) if state in {"T", "t"} else None
        if self.beat_at is None or beat != self.beat:
            self.beat, self.beat_at = beat, now
        if self.stopped_since is not None and now - self.stopped_since > STOPPED_S:
            return (
                f"stopped by a signal (for example {signal.SIGSTOP.name}) for more than {STOPPED_S:g} s; killed as hung"
            )
        if now - self.beat_at > self.timeout_s:
            return f"sent no heartbeat for {self.timeout_s:g} s (ROLECALL_WORKER_TIMEOUT_S); killed as hung"
        return None


def process_state(pid: int) -> str | None:
    """The kernel's letter for a process's state (proc(5)), or None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def request_stacks(pid: int, state: str | None) -> bool:
    """Make a worker's process in this state write the stacks of its threads to its log; return whether it can."""
    if state in {"D", "T", "t", "Z", "X", None}:  # In these states, it handles no signal.
        return False
    try:
        os.kill(pid, STACKS_SIGNAL)
    except ProcessLookupError:
        return False
    return True


def classify_exit(
    status: int, written: Failure | None, *, killed: str | None, oom: bool | None, now: datetime
) -> tuple[WorkerState, Failure | None]:
    """The final state of a worker whose process ended with `status` (negative for a signal).

    `written` is the failure that the worker wrote. `killed` is the reason for which the node killed it, empty if its
    gang was stopped. `oom` is true if the kernel has killed a process for memory meanwhile, None if that isn't known.
    """
    if status == 0:
        return WorkerState.SUCCEEDED, None
    if status == STOPPED_STATUS:
        return WorkerState.STOPPED, None
    if written is not None:
        return WorkerState.FAILED, written
    if killed == "":
        return WorkerState.STOPPED, None
    return WorkerState.FAILED, Failure(message=killed or _describe(status, oom), at=now)


def _describe(status: int, oom: bool | None) -> str:
    if status >= 0:
        return f"the process ended with {describe_exit(status)} without reporting a failure; see its log"
    if status != -signal.SIGKILL or oom is False:
        return f"killed by {describe_exit(status)}"
    return f"killed by {describe_exit(status)} ({'out of memory' if oom else 'out of memory?'})"
