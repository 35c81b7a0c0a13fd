"""How a worker ended, from what it left behind. Pure."""

import os
import signal
from datetime import datetime

from rolecall.process import describe_exit
from rolecall.spec.report import Failure
from rolecall.spec.state import WorkerState

Ending = tuple[WorkerState, Failure | None]


def classify_exit(
    status: int, written: Failure | None, *, killed: str | None, oom: bool | None, now: datetime
) -> Ending:
    """The end state of a worker whose process ended with `status` (negative for a signal).

    `written` is the failure that it wrote itself; `killed` says why the node killed it, empty when its gang was
    stopped; `oom` whether the kernel has killed for memory meanwhile, or None where that can't be known.
    """
    if status == 0:
        return WorkerState.SUCCEEDED, None
    if status == os.EX_TEMPFAIL:
        return WorkerState.STOPPED, None
    if written is not None:
        return WorkerState.FAILED, written
    if killed == "":
        return WorkerState.STOPPED, None
    return WorkerState.FAILED, Failure(message=killed or _how(status, oom), at=now)


def _how(status: int, oom: bool | None) -> str:
    if status >= 0:
        return f"the process ended with {describe_exit(status)} without reporting a failure; see its log"
    if status != -signal.SIGKILL or oom is False:
        return f"killed by {describe_exit(status)}"
    return f"killed by {describe_exit(status)} ({'out of memory' if oom else 'out of memory?'})"
