"""The children of a process that adopts orphans (`process.adopt_orphans`): which they are, and how they end."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_PROCESSES = Path("/proc")
_POLL_S = 0.001
_GRACE_S = 0.1
"""The time in which children can end by themselves. When its users are gone, torch's manager of shared memory frees it
and ends."""


def children() -> set[int]:
    """The process ids of this process's children, among them those that it has adopted, and zombies."""
    try:
        return _children_of("self")
    except FileNotFoundError:  # The kernel is built without CONFIG_PROC_CHILDREN.
        return {child.pid for child in psutil.Process().children()}


def end_children(find: Callable[[], set[int]], timeout_s: float) -> set[int]:
    """End and reap the children that `find` returns until it returns none; return those that remain after the time.

    Kills those that don't end by themselves at once, and their descendants: a process that forks and exits leaves its
    child to this one only when its memory is freed. Meanwhile the child can do the same.

    If this process adopts orphans, `find` returns the children of a killed process the next time. Only this function
    may reap these processes: until then, their ids can't refer to others.
    """
    begin = time.monotonic()
    deadline = begin + timeout_s
    while found := find():
        # First kill all: a process that can still fork is faster than the bookkeeping.
        if time.monotonic() >= begin + _GRACE_S:
            _kill_trees(found, deadline)
        for pid in found:
            os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return found
        time.sleep(_POLL_S)
    return set()


def _children_of(process: int | str) -> set[int]:
    """Raises `FileNotFoundError` for a process that does not exist or a kernel without these files."""
    found: set[int] = set()
    for task in (_PROCESSES / str(process) / "task").iterdir():
        # A thread that has just ended has no children, because another thread got them.
        with contextlib.suppress(ProcessLookupError):
            found.update(map(int, (task / "children").read_text().split()))
    return found


def _kill_trees(roots: set[int], deadline: float) -> None:
    """Kill children of this process and their descendants."""
    parents = list(roots)
    for pid in parents:
        with contextlib.suppress(PermissionError):
            os.kill(pid, signal.SIGKILL)
    while parents and time.monotonic() < deadline:
        parent = parents.pop()
        with contextlib.suppress(FileNotFoundError):
            parents += [pid for pid in _children_of(parent) if _kill_child(parent, pid)]


def _kill_child(parent: int, pid: int) -> bool:
    """Kill a child of a killed process, unless the child is gone. Its id may be another process's by now."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:  # It is gone, or the kernel or the container has no pidfd: its parent's end hands it over.
        return False
    try:
        if pid not in _children_of(parent):
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:  # Likewise, or the container's seccomp profile refuses the signal.
        return False
    finally:
        os.close(descriptor)
    return True
