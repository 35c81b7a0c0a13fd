"""Runs of gangs, and of single processes, with the CPU time and memory of each process."""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.contest import Run
from benchmarks.machine import CORES
from rolecall.spec.role import Role
from rolecall.spec.timeline import STEP_CATEGORIES
from rolecall.spec.workload import Workload
from rolecall.testing import run_gang
from rolecall.testing.gang import processes

SKIPPED = 5
"""The first steps, which allocate memory and fill caches."""
_GROWTH_BYTES = 1 << 20
"""The growth after which a process's private memory is read again: the kernel goes through all of its pages."""
_INTERVAL_S = 2.0
"""It is also read at this interval: writes to inherited pages make them private, but are no growth."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Step = Callable[[], object]


def gang(
    workload: str | Workload[Any],
    params: Mapping[str, Any],
    roles: Mapping[Role, int],
    *,
    reporter: str,
    skipped: int = SKIPPED,
    threads: Mapping[Role, int] = MappingProxyType({}),
) -> Callable[[Path], Run]:
    """A contender that runs a job's processes. `reporter` is the worker whose steps and samples count, such as
    `trainer-0`; `threads` has the number of threads of each worker of a role, 1 by default."""

    def run(folder: Path) -> Run:
        usage = Usage()
        with on_cores():
            begin_s = time.monotonic()
            result = run_gang(workload, dict(params), roles, folder, threads=threads, on_start=usage.follow)
        run = usage.run_of(result.step_ends[reporter], result.samples[reporter], skipped, begin_s)
        in_steps = {
            name: {activity: spent for activity, spent in seconds.items() if activity in STEP_CATEGORIES}
            for name, seconds in result.seconds.items()
        }
        return replace(
            run,
            seconds={name: spent for name, spent in in_steps.items() if any(spent.values())},
            bubble=result.result.get("bubble_measured"),
            bubble_theory=result.result.get("bubble_theory"),
            bubble_simulated=result.result.get("bubble_simulated"),
        )

    return run


def alone(
    prepare: Callable[[Path], Step],
    steps: int,
    *,
    units_per_step: float,
    skipped: int = SKIPPED,
    threads: int = CORES,
    scale: float = 1.0,
) -> Callable[[Path], Run]:
    """A contender in one process: `prepare` returns a function that does one step. The rate is multiplied by `scale`,
    for limits that are computed from the rate of one thread."""

    def run(folder: Path) -> Run:
        receiver, sender = processes.Pipe(duplex=False)
        usage = Usage()
        with on_cores():
            begin_s = time.monotonic()
            process = processes.Process(target=_run_alone, args=(prepare, steps, threads, folder, sender), daemon=True)
            process.start()
            sender.close()
            usage.follow({"process": process.pid or 0})
            try:
                ends = receiver.recv()
            except EOFError:
                raise AssertionError("the process failed; see its traceback above") from None
            finally:
                process.join()
        return usage.run_of(ends, [units_per_step * scale] * steps, skipped, begin_s)

    return run


def _run_alone(prepare: Callable[[Path], Step], steps: int, threads: int, folder: Path, sender: Any) -> None:
    torch.set_num_threads(threads)
    step = prepare(folder)
    ends: list[float] = []
    for _ in range(steps):
        step()
        ends.append(time.monotonic())
    sender.send(ends)


@contextmanager
def on_cores() -> Generator[None]:
    """Processes that are started within use the first `CORES` cores of this process."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class _Process:
    pid: int
    times_s: list[float] = field(default_factory=list[float])
    cpu_s: list[float] = field(default_factory=list[float])
    peak_bytes: int = 0
    anonymous_bytes: int = 0
    private_bytes: int = 0
    _read_at_bytes: int = 0
    """The anonymous memory when the private part was read."""
    _read_at_s: float = 0.0
    """The time at that moment."""

    def look(self) -> bool:
        """Note the CPU time and memory so far. Returns False if the process has ended."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{self.pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False
        if stat[0] == "Z":
            return False
        self.times_s.append(time.monotonic())
        self.cpu_s.append((int(stat[11]) + int(stat[12])) / _TICKS_PER_S)
        sizes = {line.partition(":")[0]: line.split()[1] for line in status.splitlines() if line.endswith("kB")}
        self.peak_bytes = max(self.peak_bytes, int(sizes.get("VmHWM", 0)) * 1024)
        self.anonymous_bytes = max(self.anonymous_bytes, int(sizes.get("RssAnon", 0)) * 1024)
        has_grown = self.anonymous_bytes > self._read_at_bytes + _GROWTH_BYTES
        if has_grown or self.times_s[-1] > self._read_at_s + _INTERVAL_S:
            self._read_at_bytes, self._read_at_s = self.anonymous_bytes, self.times_s[-1]
            self.private_bytes = max(self.private_bytes, self._read_private_bytes())
        return True

    def _read_private_bytes(self) -> int:
        """The pages that the process has written and shares with no other one."""
        try:
            lines = Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):  # The process has ended.
            return 0
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) * 1024

    def cpu_between(self, begin_s: float, end_s: float) -> float:
        """CPU seconds between two times, interpolated."""
        return self._cpu_at(end_s) - self._cpu_at(begin_s)

    def _cpu_at(self, at_s: float) -> float:
        if not self.times_s:
            return 0.0
        right = min(max(1, bisect_left(self.times_s, at_s)), len(self.times_s) - 1)
        left = max(0, right - 1)
        span_s = self.times_s[right] - self.times_s[left]
        share = min(1.0, max(0.0, (at_s - self.times_s[left]) / span_s)) if span_s else 1.0
        return self.cpu_s[left] + share * (self.cpu_s[right] - self.cpu_s[left])


class Usage:
    """Follows processes from outside, ten times a second."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._thread: threading.Thread | None = None

    def follow(self, pids: Mapping[str, int]) -> None:
        """Begin to follow the processes, by name, until all have ended."""
        self._processes = {name: _Process(pid) for name, pid in pids.items()}
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        running = list(self._processes.values())
        while running:
            running = [process for process in running if process.look()]
            time.sleep(0.1)

    def run_of(self, ends_s: Sequence[float], units: Sequence[float], skipped: int, begin_s: float) -> Run:
        """The figures of a run whose steps ended at these times of the monotonic clock, with the units of each step."""
        if self._thread is not None:
            self._thread.join()
        first, last, count = ends_s[skipped - 1], ends_s[-1], len(ends_s) - skipped
        return Run(
            rate=sum(units[skipped:]) / (last - first),
            step_ms=(last - first) / count * 1e3,
            cpu_ms={name: one.cpu_between(first, last) / count * 1e3 for name, one in self._processes.items()},
            peak_bytes={name: one.peak_bytes for name, one in self._processes.items()},
            anonymous_bytes={name: one.anonymous_bytes for name, one in self._processes.items()},
            private_bytes={name: one.private_bytes for name, one in self._processes.items()},
            first_step_s=ends_s[0] - begin_s,
        )
