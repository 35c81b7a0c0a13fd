"""Measures the seconds from `POST /jobs` to the first optimizer step: `python -m benchmarks.first_step [NAME ...]`.

Runs the example of each workload on a local cluster, cancels it after its first step, and repeats that: the first job
fills caches of data, the others are warm. Prints a Markdown table of the warm jobs' medians, by phase. Run it in the
repository's root, whose `examples` the jobs read.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from rolecall.client import Client
from rolecall.client.connection import Connection
from rolecall.spec.report import StartTimes

WORKLOADS = ("embedding-ddp", "rnn-lm", "resnet-pipeline", "transformer-pipeline", "reinforce")
_NODES = ("--trainers", "2", "--parameter-servers", "1", "--stages", "2", "--observers", "2")
_POLL_S = 0.1
_TIMEOUT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_step", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(WORKLOADS)}; by default all")
    parser.add_argument("--warm", type=int, default=3, help="measured jobs of each workload, after the first one")
    options = parser.parse_args()
    print("| workload | first job | warm | queue | spawn | join | first step |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, cluster(Path(folder)) as client:
        for name in options.names or WORKLOADS:
            cold, *warm = [start_times(client, example(name)) for _ in range(options.warm + 1)]
            print(row(name, cold, warm), flush=True)


def row(name: str, cold: StartTimes, warm: Sequence[StartTimes]) -> str:
    """A row of the table: the total of the first job, and of the warm jobs' median with its phases, in seconds."""
    median = sorted(warm, key=lambda one: one.total)[(len(warm) - 1) // 2]
    phases = (cold.total, median.total, median.queue, median.spawn, median.join, median.first_step)
    return f"| {name} | " + " | ".join(f"{seconds:.2f} s" for seconds in phases) + " |"


def example(name: str) -> dict[str, Any]:
    """The request for the example job of a workload."""
    return json.loads((files("rolecall.workloads") / name.replace("-", "_") / "example.json").read_text())


def start_times(client: Client, request: dict[str, Any]) -> StartTimes:
    """Run a job to its first step, cancel it, and wait for its end."""
    job = client.submit(request)
    end_s = time.monotonic() + _TIMEOUT_S
    found: StartTimes | None = None
    while not job.state.ended:
        if time.monotonic() > end_s:
            raise TimeoutError(f"the job {job.id} did not start and end in {_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
        job = client.job(job.id)
        if found is None and (found := job.progress.start_s) is not None:
            client.act(job.id, "cancel")
    if found is None:
        raise RuntimeError(f"the job {job.id} ended without a step: {job.reason}")
    return found


@contextmanager
def cluster(folder: Path) -> Generator[Client]:
    """A client of a local cluster while the body runs, with its data in `folder`."""
    with local(folder) as connection, Client(connection) as client:
        yield client


@contextmanager
def local(folder: Path) -> Generator[Connection]:
    """A local cluster while the body runs, with its data in `folder`."""
    command = [sys.executable, "-m", "rolecall.cli", "local", "--json", "--port", "0", "--data", str(folder), *_NODES]
    # The stored connection of this user's own cluster remains as it is.
    environment = os.environ | {"XDG_CONFIG_HOME": str(folder)}
    process = subprocess.Popen(  # noqa: S603 - constants
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        ready = json.loads(process.stdout.readline())
        yield Connection(**json.loads(Path(ready["token_file"]).read_text()))
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
