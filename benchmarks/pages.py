# pyright: standard
"""Measures the pages and curves of a large job: `python -m benchmarks.pages [--workers N] [--kibibytes N]`.

Starts a master, registers two nodes that run no processes, and submits a job whose trainers have long step series.
Prints the time of each page, and of the series that a job's page asks for: the first time, when the master reads all
series, and later, when it reads what is new.
"""

import argparse
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from benchmarks.first_step import example
from rolecall import __version__
from rolecall.spec.node import Machine, NodeSpec
from rolecall.spec.role import Role

_CALLS = 11
_WAIT_S = 60.0
_ADDRESSES = {Role.PARAMETER_SERVER: "192.0.2.1", Role.TRAINER: "192.0.2.2"}
"""Of documentation (RFC 5737): nobody connects to them."""
_LINE = (
    '{"kind":"step","at":"2026-01-01T00:00:00Z","step":%d,"steps":1000000,"epoch":1,"samples_per_s":123.4,'
    '"metrics":{"loss":0.5}}\n'
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--workers", type=int, default=200, help="trainers of the job")
    parser.add_argument("--kibibytes", type=int, default=200, help="size of the step series of each trainer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, master(Path(folder)) as users:
        job = large_job(users, options.workers, options.kibibytes << 10)
        series = f"/jobs/{job}/metrics?points=1000&lowest_rank=true"
        print(f"series of {options.workers} workers: {times_ms(users, series)}", flush=True)
        users.post("/ui/login", data={"token": users.token, "next": "/"}, follow_redirects=True).raise_for_status()
        for page in ("/", f"/ui/jobs/{job}", f"/ui/jobs/{job}/status", "/ui/submit", f"/ui/compare?job={job}"):
            print(f"{page}: {times_ms(users, page)}", flush=True)


class Users(httpx.Client):
    """A client with the token of the users, which also has that of the nodes."""

    def __init__(self, url: str, token: str, node_token: str) -> None:
        super().__init__(base_url=url, timeout=60, headers={"Origin": url, "Authorization": f"Bearer {token}"})
        self.token = token
        self.as_node = {"Authorization": f"Bearer {node_token}"}


@contextmanager
def master(folder: Path) -> Generator[Users]:
    """A client of a master that runs while the body does, with its data in `folder`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token, node_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    own = {"ROLECALL_DATA": str(folder), "ROLECALL_HOST": "127.0.0.1", "ROLECALL_PORT": str(port)}
    own |= {"ROLECALL_TOKEN": token, "ROLECALL_NODE_TOKEN": node_token, "ROLECALL_NODE_TIMEOUT_S": "600"}
    command = [sys.executable, "-m", "rolecall", "master"]
    process = subprocess.Popen(command, env=os.environ | own, stderr=subprocess.DEVNULL)  # noqa: S603 - constants
    try:
        with Users(f"http://127.0.0.1:{port}", token, node_token) as users:
            wait_until(lambda: users.get("/readyz").is_success)
            yield users
    finally:
        process.terminate()
        process.wait()


def wait_until(is_done: Callable[[], bool]) -> None:
    """Wait until `is_done`. A master that still starts refuses connections."""
    end_s = time.monotonic() + _WAIT_S
    while True:
        with suppress(httpx.ConnectError):
            if is_done():
                return
        if time.monotonic() > end_s:
            raise TimeoutError(f"not done in {_WAIT_S:.0f} s")
        time.sleep(0.1)


def large_job(users: Users, workers: int, series_bytes: int) -> str:
    """A placed job with this number of trainers, each of which has reported a step series of this size."""
    nodes = {
        Role.PARAMETER_SERVER: Node(users, Role.PARAMETER_SERVER, 1),
        Role.TRAINER: Node(users, Role.TRAINER, workers),
    }
    request = example("rnn-lm") | {"roles": {"parameter-server": 1, "trainer": workers}}
    request["params"] |= {"batch_size": workers}  # Each trainer needs a row.
    job = users.post("/jobs", json=request).raise_for_status().json()["id"]
    wait_until(lambda: users.get(f"/jobs/{job}").json()["state"] != "queued")
    for node in nodes.values():
        node.beat()
    body = "".join(_LINE % step for step in range(series_bytes // len(_LINE))).encode()
    for rank in range(1, workers + 1):
        nodes[Role.TRAINER].ship(job, rank, body)
    return job


@dataclass
class Node:
    """A node that registers and ships streams, but starts no process."""

    users: Users
    role: Role
    slots: int

    def __post_init__(self) -> None:
        machine = Machine(
            boot_id=self.role, hostname=self.role, cores=self.slots, cpu_slots=self.slots, memory_bytes=1, gpus=()
        )
        spec = NodeSpec(
            name=f"{self.role}-0",
            role=self.role,
            slots=self.slots,
            address=_ADDRESSES[self.role],
            interface="eth0",
            metrics_port=0,
            machine=machine,
            version=__version__,
            started=secrets.token_hex(8),
        )
        self._spec = spec
        self._post("/internal/nodes", spec.model_dump(mode="json"))
        self.beat()

    def beat(self) -> None:
        body = {"started": self._spec.started, "seen": -1, "wait_s": 0.0, "workers": []}
        self._post(f"/internal/nodes/{self._spec.name}/heartbeat", body)

    def ship(self, job: str, rank: int, body: bytes, chunk: int = 1 << 20) -> None:
        """Ship a worker's progress."""
        path = f"/internal/jobs/{job}/attempts/1/ranks/{rank}/streams/progress"
        for offset in range(0, len(body), chunk):
            part = {"params": {"offset": offset}, "content": body[offset : offset + chunk]}
            self.users.put(path, headers=self.users.as_node, **part).raise_for_status()

    def _post(self, path: str, body: dict[str, object]) -> None:
        self.users.post(path, json=body, headers=self.users.as_node).raise_for_status()


def times_ms(users: Users, path: str) -> str:
    """The time of the first call, and of later ones."""
    found: list[float] = []
    for _ in range(_CALLS):
        begin_s = time.perf_counter()
        users.get(path).raise_for_status()
        found.append(1000 * (time.perf_counter() - begin_s))
    return f"first {found[0]:.0f} ms, then {median(found[1:]):.0f} ms (median), {max(found[1:]):.0f} ms at most"


if __name__ == "__main__":
    main()
