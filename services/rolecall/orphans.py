"""The children of a process that adopts orphans (`process.adopt_orphans`): which they are, and how they end."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_TASKS = Path("/proc/self/task")
_POLL_S = 0.001
_GRACE_S = 0.1
"""The time in which children can end by themselves. When its users are gone, torch's manager of shared memory frees it
and ends."""


def children() -> set[int]:
    """The process ids of this process's children, among them those that it has adopted, and zombies."""
    found: set[int] = set()
    try:
        for task in _TASKS.iterdir():
            # A thread that has just ended has no children, because another thread got them.
            with contextlib.suppress(ProcessLookupError):
                found.update(map(int, (task / "children").read_text().split()))
    except FileNotFoundError:  # The kernel is built without CONFIG_PROC_CHILDREN.
        return {child.pid for child in psutil.Process().children()}
    return found


def end_children(find: Callable[[], set[int]], timeout_s: float) -> set[int]:
    """End and reap the children that `find` returns until it returns none; return those that remain after the time.

    Kills those that don't end by themselves at once.

    If this process adopts orphans, `find` returns the children of a killed process the next time. Only this function
    may reap these processes: until then, their ids can't refer to others.
    """
    begin = time.monotonic()
    deadline = begin + timeout_s
    while found := find():
        # First kill all: a process that can still fork is faster than the bookkeeping.
        for pid in found if time.monotonic() >= begin + _GRACE_S else ():
            with contextlib.suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)
    return set()
