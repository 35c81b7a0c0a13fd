"""Measures what waiting jobs cost a master: `python -m benchmarks.queue [--jobs N]`.

Starts a local cluster, and queues jobs that don't fit. Prints the latencies of `POST /jobs` and of
`/healthz`, which is called meanwhile, the CPU time of the master while nothing happens, and the time until a job that
fits is placed.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.first_step import cluster, example
from rolecall.client import Client

_MEASURED = 200
"""The number of measured calls of each kind."""
_IDLE_S = 10.0
_POLL_S = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="waiting jobs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, cluster(Path(folder)) as client:
        too_large = example("rnn-lm") | {"roles": {"parameter-server": 1, "trainer": 32}}
        for _ in range(options.jobs):
            client.submit(too_large)
        print(f"waiting jobs: {options.jobs}")
        print(f"POST /jobs: {shown(latencies_ms(lambda: client.submit(too_large)))}")
        with httpx.Client(base_url=client.url) as plain:
            print(f"GET /healthz: {shown(latencies_ms(lambda: plain.get('/healthz').raise_for_status()))}")
        print(f"CPU time of the master while nothing happens: {idle_share(master_process()):.1%} of a core")
        print(f"a job that fits is placed after {seconds_to_placement(client):.2f} s")


def latencies_ms(call: Callable[[], Any]) -> list[float]:
    """The milliseconds that each of 200 calls takes, one after the other."""
    found: list[float] = []
    for _ in range(_MEASURED):
        begin_s = time.perf_counter()
        call()
        found.append((time.perf_counter() - begin_s) * 1e3)
    return found


def shown(ms: Sequence[float]) -> str:
    return f"p50 {statistics.median(ms):.0f} ms, p99 {percentile(ms, 99):.0f} ms, max {max(ms):.0f} ms"


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def idle_share(master: psutil.Process, seconds: float = _IDLE_S) -> float:
    """The share of a core that the process uses in this time."""
    before_s = cpu_s(master)
    time.sleep(seconds)
    return (cpu_s(master) - before_s) / seconds


def cpu_s(process: psutil.Process) -> float:
    """The CPU time that the process has used."""
    times = process.cpu_times()
    return times.user + times.system


def master_process() -> psutil.Process:
    """The control program of the cluster that this process has started."""
    own = psutil.Process().children(recursive=True)
    return next(process for process in own if process.cmdline()[-2:] == ["rolecall", "master"])


def seconds_to_placement(client: Client) -> float:
    """Submit a job that fits, wait until it is placed, and cancel it."""
    begin_s = time.perf_counter()
    job = client.submit(example("rnn-lm")).id
    while client.job(job).state == "queued":
        time.sleep(_POLL_S)
    seconds = time.perf_counter() - begin_s
    client.act(job, "cancel")
    return seconds


if __name__ == "__main__":
    main()
