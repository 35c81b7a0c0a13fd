"""Whether a worker's process still lives: a process that is stopped, or no longer beats, holds its whole gang."""

import signal
from dataclasses import dataclass
from pathlib import Path

STOPPED_S = 3.0
"""How long a process may be stopped (SIGSTOP, a debugger) before it counts as hung."""


@dataclass(slots=True)
class Vitals:
    """The signs of one worker's life. Times are of a monotonic clock, so that a corrected wall clock kills nobody."""

    timeout_s: float
    stopped_since: float | None = None
    beat: int | None = None
    beat_at: float | None = None

    def observe(self, state: str | None, beat: int | None, now: float) -> str | None:
        """Take in the process's state letter and its beat's time stamp; return why it counts as hung, if it does."""
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
    """The kernel's letter for a process's state (proc(5)), or None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
