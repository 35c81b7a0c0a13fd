"""Measures what a running job costs besides its steps: `python -m benchmarks.overheads [NAME ...]`.

Runs the example of each workload on a local cluster, with a checkpoint every two seconds. Prints a Markdown table with
the time for which training stands still for a checkpoint, the CPU time of a worker's reports as a share of its steps,
and the CPU time of the service: master, nodes and fork servers, with heartbeats, progress and logs. Run it in the
repository's root, whose `examples` the jobs read.
"""

import argparse
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.first_step import WORKLOADS, cluster, example
from rolecall.client import Client
from rolecall.runtime.reporter import Reporter
from rolecall.spec.job import Progress
from rolecall.spec.report import TimeSpent

_CHECKPOINT_S = 2.0
_MEASURED_S = 20.0
_TIMEOUT_S = 120.0
_POLL_S = 0.1
_ENDLESS = {
    "embedding-ddp": {"epochs": 10_000, "early_stopping": None},
    "rnn-lm": {"epochs": 10_000},
    "resnet-pipeline": {"epochs": 10_000},
    "transformer-pipeline": {"epochs": 10_000},
    "reinforce": {"max_updates": 1_000_000, "target_return": None},
}


@dataclass(frozen=True, slots=True)
class Overheads:
    """The measurements of a job."""

    checkpoints: int
    mean_bytes: float
    """Bytes of a checkpoint."""
    stall_s: float
    """Seconds for which all checkpoints stopped the training."""
    seconds: float
    """The length of the measurement."""
    steps: int
    service_s: float
    """CPU seconds of master, nodes and fork servers."""
    workers_s: float
    """CPU seconds of the workers."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overheads", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(WORKLOADS)}; by default all")
    options = parser.parse_args()
    report_s = seconds_per_report()
    print("| workload | checkpoint | stall each | stall of the time | step | reports | service | workers |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, cluster(Path(folder)) as client:
        for name in options.names or WORKLOADS:
            print(row(name, measure(client, name), report_s), flush=True)


def row(name: str, found: Overheads, report_s: float) -> str:
    """A row of the table. CPU times are shares of one core."""
    step_s = found.seconds / found.steps
    shares = f"{found.stall_s / found.seconds:.1%} | {step_s * 1e3:.0f} ms | {report_s / step_s:.3%}"
    cpu = f"{found.service_s / found.seconds:.1%} | {found.workers_s / found.seconds:.0%}"
    each_ms = found.stall_s / max(1, found.checkpoints) * 1e3
    return f"| `{name}` | {found.mean_bytes / 2**20:.1f} MiB | {each_ms:.0f} ms | {shares} | {cpu} |"


def seconds_per_report(calls: int = 20_000, interval_s: float = 1e-3) -> float:
    """CPU seconds of a report, on average over steps of `interval_s` seconds by its clock."""
    now_s = 0.0
    metrics = {"validation_auc": 0.5, "learning_rate": 0.1}
    with tempfile.TemporaryDirectory() as folder:
        reporter = Reporter(Path(folder) / "progress.jsonl", clock=lambda: now_s)
        begin_s = time.thread_time()
        for step in range(1, calls + 1):
            now_s += interval_s
            reporter(step, loss=0.5, samples=32, steps=calls, metrics=metrics, spent=TimeSpent)
        return (time.thread_time() - begin_s) / calls


def measure(client: Client, name: str) -> Overheads:
    """Run a job, measure after its first checkpoint, and cancel it."""
    request = example(name)
    request["params"] |= _ENDLESS[name] | {"checkpoint_every_s": _CHECKPOINT_S}
    job = client.submit(request).id
    try:
        before = _wait_for_checkpoint(client, job)
        cpu, begin_s = _cpu_s(), time.monotonic()
        known = _checkpoints(client, job)
        written = set[int]()  # The master keeps only the newest checkpoints.
        while time.monotonic() < begin_s + _MEASURED_S:
            time.sleep(_CHECKPOINT_S / 2)
            written |= _checkpoints(client, job)
        seconds, after = time.monotonic() - begin_s, _cpu_s()
        progress = client.job(job).progress
        sizes = [sum(part.size for part in one.manifest.parts) for one in client.checkpoints(job)]
        return Overheads(
            checkpoints=len(written - known),
            mean_bytes=sum(sizes) / len(sizes),
            stall_s=_stall_s(progress) - _stall_s(before),
            seconds=seconds,
            steps=progress.step - before.step,
            service_s=after[0] - cpu[0],
            workers_s=after[1] - cpu[1],
        )
    finally:
        client.act(job, "cancel")
        while not client.job(job).state.ended:
            time.sleep(_POLL_S)


def _wait_for_checkpoint(client: Client, job: str) -> Progress:
    end_s = time.monotonic() + _TIMEOUT_S
    while not client.checkpoints(job):
        if time.monotonic() > end_s or client.job(job).state.ended:
            raise RuntimeError(f"{job} wrote no checkpoint in {_TIMEOUT_S:.0f} s: {client.job(job).reason}")
        time.sleep(_POLL_S)
    return client.job(job).progress


def _checkpoints(client: Client, job: str) -> set[int]:
    """The steps of the checkpoints that exist."""
    return {one.manifest.step for one in client.checkpoints(job)}


def _stall_s(progress: Progress) -> float:
    return progress.spent.checkpoint if progress.spent else 0.0


def _cpu_s() -> tuple[float, float]:
    """CPU seconds of the service and of the workers so far. Workers are the children of fork servers."""
    service = workers = 0.0
    for process in psutil.Process(os.getpid()).children(recursive=True):
        try:
            times, parent = process.cpu_times(), process.parent()
            of_worker = parent is not None and _serves_forks(parent)
        except psutil.NoSuchProcess:
            continue
        if of_worker:
            workers += times.user + times.system
        else:
            service += times.user + times.system
    return service, workers


def _serves_forks(process: Any) -> bool:
    return "rolecall.worker.fork_server" in process.cmdline()


if __name__ == "__main__":
    main()
