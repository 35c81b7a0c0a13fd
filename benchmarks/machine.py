"""The machine of a report, and what it can do at most: floors for the times of steps."""

import os
import platform
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

CORES = 2
"""The number of CPU cores of every contender."""
_PACKAGES = ("numpy", "gymnasium", "stable-baselines3")


def describe() -> dict[str, str | float]:
    """CPU, versions, commit, and the measured limits of one thread."""
    cpuinfo = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "unknown")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "rolecall": version("rolecall"),
        "commit": _commit(),
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES if find_spec(name.replace("-", "_"))),
        "gflops_per_thread": round(_gflops(), 1),
        "copy_gb_per_s": round(_copy_gb_per_s(), 1),
    }


def _commit() -> str:
    return (_git("rev-parse", "--short", "HEAD") or "unknown") + (
        " with changes" if _git("status", "--porcelain", "--untracked-files=no") else ""
    )


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - constants


def _gflops(size: int = 1024) -> float:
    """Billion floating-point operations per second of a product of two float32 matrices, with one thread."""
    left, right = torch.rand(size, size), torch.rand(size, size)
    return 2 * size**3 / _best_s(lambda: left @ right) / 1e9


def _copy_gb_per_s(size: int = 1 << 26) -> float:
    """Billion bytes per second that one thread reads and writes when it copies memory."""
    source, target = torch.zeros(size // 4), torch.empty(size // 4)
    return 2 * size / _best_s(lambda: target.copy_(source)) / 1e9


def _best_s(work: Callable[[], object]) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times_s: list[float] = []
    for _ in range(10):
        begin_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - begin_s)
    torch.set_num_threads(threads)
    return min(times_s)
