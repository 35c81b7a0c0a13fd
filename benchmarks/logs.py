"""Measures what it costs a master to serve logs: `python -m benchmarks.logs [--megabytes N] [--followers N]`.

Starts a local cluster, and gives the worker of an ended job a long log of short lines. Prints the throughput of
`GET /jobs/{job}/logs` with the CPU time of the master, of the whole log and of a search for a text that no line
contains, the time of the last 1,000 lines, which the page shows, the same for the records of all workers, merged by
time, and the CPU time of followers of jobs that print nothing.
"""

import argparse
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

import psutil

from benchmarks.first_step import example, local, start_times
from benchmarks.queue import cpu_s, idle_share, master_process
from rolecall.client import Client

Query = dict[str, int]
_ROUNDS = 5
_SILENT_JOBS = 5
_WATCHED_S = 30.0
"""Long enough for two comments to each follower, which keep its connection alive."""
_PER_CLIENT = 50
"""A client has 100 connections at most."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logs", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="size of the log")
    parser.add_argument("--followers", type=int, default=100, help="followers of jobs that print nothing")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rolecall-bench-")))
        connection = stack.enter_context(local(folder))
        client, master = stack.enter_context(Client(connection)), master_process()
        job = ended_job(client, folder, options.megabytes * 10**6)
        what, one = f"{options.megabytes} MB of lines", {"rank": 0}
        for _ in range(_ROUNDS):
            print(f"{what}, {serving(client, master, job, one)}", flush=True)
        print(f"{what}, {searching(client, master, job, options.megabytes)}", flush=True)
        print(f"{what}, {ending(client, job, one)}", flush=True)
        what = f"{options.megabytes} MB of records of {record_logs(folder, job, options.megabytes * 10**6)} workers"
        for _ in range(_ROUNDS):
            print(f"{what}, {serving(client, master, job, {})}", flush=True)
        print(f"{what}, {ending(client, job, {})}", flush=True)
        too_large = example("rnn-lm") | {"roles": {"parameter-server": 1, "trainer": 32}}
        silent = [client.submit(too_large).id for _ in range(_SILENT_JOBS)]
        alone = idle_share(master, _WATCHED_S)
        for number in range(options.followers):
            if number % _PER_CLIENT == 0:
                client = stack.enter_context(Client(connection))
            path = f"/jobs/{silent[number % len(silent)]}/logs"
            stack.enter_context(client.stream(path, {"follow": "true"}, read_s=60.0))
        followed = idle_share(master, _WATCHED_S)
        print(f"idle: {alone:.2%} of a core, with {options.followers} followers of silent jobs: {followed:.2%}")


def ended_job(client: Client, folder: Path, size: int) -> str:
    """A job that has ended; the log of its rank 0 has this number of bytes."""
    start_times(client, example("rnn-lm"))
    job = client.jobs()[0].id
    (log,) = folder.rglob(f"streams/{job}/1/0/log.txt")
    line = b"step 0000000 loss 0.123456\n"
    with log.open("wb") as file:
        for _ in range(size // (1000 * len(line)) + 1):
            file.write(line * 1000)
    return job


def record_logs(folder: Path, job: str, size: int) -> int:
    """Give all workers of the job logs of records, whose times alternate. Returns the number of workers."""
    logs = list(folder.rglob(f"streams/{job}/1/*/log.txt"))
    began, count = datetime(2026, 1, 1, tzinfo=UTC), 0
    with ExitStack() as stack:
        files = [stack.enter_context(log.open("wb")) for log in logs]
        while size > 0:
            time = (began + timedelta(milliseconds=count)).isoformat(" ", "milliseconds")
            size -= files[count % len(files)].write(f"{time} INFO rolecall.kit.loop step {count:07d}\n".encode())
            count += 1
    return len(logs)


def serving(client: Client, master: psutil.Process, job: str, query: Query) -> str:
    """Read the logs of a job once."""
    before_s, begin_s, size = cpu_s(master), time.perf_counter(), 0
    for chunk in client.log(job, query):
        size += len(chunk)
    wall_s, own_s = time.perf_counter() - begin_s, cpu_s(master) - before_s
    return f"{size / 1e6:.0f} MB with names: {size / 1e6 / wall_s:.0f} MB/s, {own_s:.2f} s of the master's CPU"


def searching(client: Client, master: psutil.Process, job: str, megabytes: int) -> str:
    """Search the logs of a job once for a text that they do not contain."""
    before_s, begin_s = cpu_s(master), time.perf_counter()
    found = sum(map(len, client.log(job, {"text": "no such text", "rank": 0})))
    wall_s, own_s = time.perf_counter() - begin_s, cpu_s(master) - before_s
    assert found == 0, "a line contains the text"
    return f"search: {megabytes / wall_s:.0f} MB/s, {wall_s:.2f} s, {own_s:.2f} s of the master's CPU"


def ending(client: Client, job: str, query: Query) -> str:
    """Read the last 1,000 lines of the logs of a job a few times."""
    times_ms: list[float] = []
    for _ in range(2 * _ROUNDS + 1):
        begin_s = time.perf_counter()
        lines = b"".join(client.log(job, query | {"tail": 1000})).splitlines()
        times_ms.append(1000 * (time.perf_counter() - begin_s))
        assert len(lines) == 1000
    return f"the last 1,000: {median(times_ms):.0f} ms (median), {max(times_ms):.0f} ms at most"


if __name__ == "__main__":
    main()
