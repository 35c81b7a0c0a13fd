"""Measures the systems in turn, and prints one line of JSON for each: `python -m benchmarks.peers [SYSTEM ...]`."""

# ruff: noqa: S603 - the commands are constants

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.peers.marks import Mark
from benchmarks.peers.systems import SYSTEMS, Job, System

_POLL_S = 0.2
_BOUND_S = 60.0
_STEPS = 50
"""Steps before a worker is killed or stopped; checkpoints are written every 20."""
_SETTLE_S = 20.0
_VERSIONS = "from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in ('ray', 'torchx', 'torch')))"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"one of {', '.join(SYSTEMS)}; by default all")
    parser.add_argument("--peers", type=Path, default=Path("build/peers/bin"), help="bin folder of the peers")
    parser.add_argument("--only", choices=("start", "kill", "stop", "idle"), action="append", help="by default all")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    peers = options.peers.absolute()
    print(
        subprocess.run([peers / "python", "-c", _VERSIONS], check=True, capture_output=True, text=True).stdout,
        flush=True,
    )
    for _ in range(options.rounds):
        for name in options.systems or SYSTEMS:
            temporary = tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True)
            with temporary as folder, SYSTEMS[name](Path(folder), peers) as system:
                only = options.only or ["idle", "start", "kill", "stop"]
                print(json.dumps({"system": name} | measured(system, only)), flush=True)


def measured(system: System, only: list[str]) -> dict[str, float | None]:
    """The figures of one started system, in seconds and MiB."""
    found: dict[str, float | None] = {}
    if "idle" in only:
        time.sleep(_SETTLE_S)
        found["idle_mib"] = round(sum(one.memory_full_info().pss for one in system.processes()) / 2**20)
    if "start" in only:
        start(system)
        found["first_step_s"] = round(start(system), 2)
    for name, number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
        if name in only:
            found |= {f"{name}_{what}": value for what, value in disturb(system, number).items()}
    return found


def start(system: System) -> float:
    """Seconds from the submission to the end of the first step of both workers."""
    begin = time.time()
    job = system.submit()
    first = both(job, 1)
    job.cancel()
    time.sleep(2.0)  # Its processes end.
    return max(mark.at for mark in first) - begin


def disturb(system: System, number: signal.Signals) -> dict[str, float | None]:
    """Send a signal to the worker of rank 1. Returns the seconds until the other worker's process has ended and until
    the next step, None where that takes too long, and the number of this step."""
    job = system.submit()
    before = {mark.rank: mark.pid for mark in both(job, _STEPS)}
    begin = time.time()
    os.kill(before[1], number)
    ended: float | None = None
    next_step: Mark | None = None
    while next_step is None and time.time() < begin + _BOUND_S:
        time.sleep(_POLL_S / 4)
        if ended is None and gone(before[0]):
            ended = time.time() - begin
        next_step = next((mark for mark in job.marks() if mark.rank == 0 and mark.pid != before[0]), None)
    if not gone(before[1]):
        os.kill(before[1], signal.SIGKILL)
    job.cancel()
    time.sleep(2.0)
    seconds = {"ended_s": ended, "next_step_s": next_step.at - begin if next_step else None}
    rounded = {what: None if value is None else round(value, 2) for what, value in seconds.items()}
    return rounded | {"step": next_step.step if next_step else None}


def both(job: Job, step: int) -> list[Mark]:
    """Wait for this step of both workers."""
    end = time.time() + 2 * _BOUND_S
    while time.time() < end:
        found = [mark for mark in job.marks() if mark.step == step]
        if len(found) == 2:
            return found
        time.sleep(_POLL_S)
    raise TimeoutError(f"step {step} was not reached")


def gone(pid: int) -> bool:
    """Return whether the process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


if __name__ == "__main__":
    main()
