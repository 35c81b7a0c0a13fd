"""The programs of a small cluster as containers run them: `python -m rolecall`, configured by variables alone."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.ports import free_port
from tests.running import ENDED

START_S = 90
JOB_S = 120


@contextmanager
def containers(
    data: Path, shared: Mapping[str, str], of_role: Mapping[str, Mapping[str, str]]
) -> Generator[tuple[int, list[int]]]:
    """A container for each of the roles, each with a folder and a log below `data`; the master's port and all pids."""
    port = free_port()
    common = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "ROLECALL_HOST": "127.0.0.1",
        "ROLECALL_PORT": str(port),
        "ROLECALL_METRICS_PORT": "0",
        "ROLECALL_CPU_SLOTS": "2",
    }
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for role, own in of_role.items():
            home = {"ROLE": role, "ROLECALL_NODE_NAME": role, "ROLECALL_DATA": str(data / role)}
            command = [sys.executable, "-m", "rolecall"]
            with (data / f"{role}.log").open("wb") as log:
                environment = {**common, **shared, **home, **own}
                processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        yield port, [process.pid for process in processes]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def await_nodes(client: httpx.Client, count: int) -> list[dict[str, Any]]:
    """The nodes, once `count` have registered."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if len(nodes := client.get("/nodes").json()["nodes"]) == count:
                return nodes
        time.sleep(0.2)
    pytest.fail("the nodes did not register")


def await_end(client: httpx.Client, job: str, meanwhile: Callable[[], object] = bool) -> dict[str, Any]:
    """The job's document when it has ended. Calls `meanwhile` repeatedly until then."""
    document: dict[str, Any] = {}
    deadline = time.monotonic() + JOB_S
    while time.monotonic() < deadline:
        if (document := client.get(f"/jobs/{job}").json())["state"] in ENDED:
            return document
        meanwhile()
        time.sleep(0.1)
    pytest.fail(f"job {job} did not end: {document}")
