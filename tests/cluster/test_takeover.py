# pyright: standard
"""Two real masters, of which the first is killed: a job that trains on real nodes continues."""

import os
import signal
import socket
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from tests.cluster.jobs import long_job
from tests.containers import COMMAND, TOKEN, Container, bearer, container, node, until
from tests.running import accepted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Address:
    """A port that leads to the master that leads, as a Kubernetes Service or a virtual address does."""

    def __init__(self, listener: socket.socket, master: int) -> None:
        self.port: int = listener.getsockname()[1]
        self.master = master
        self._listener = listener

    def serve(self) -> None:
        """Pass connections on until the listener is closed."""
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                Thread(target=self._join, args=(caller,), daemon=True).start()

    def _join(self, caller: socket.socket) -> None:
        with caller, suppress(OSError), socket.create_connection(("127.0.0.1", self.master)) as master:
            back = Thread(target=_pass_on, args=(master, caller), daemon=True)
            back.start()
            _pass_on(caller, master)
            back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(1 << 16):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def address(master: int) -> Generator[Address]:
    """The address, leading to this port of the machine at first."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        one = Address(listener, master)
        Thread(target=one.serve, daemon=True).start()
        yield one
        listener.shutdown(socket.SHUT_RDWR)


def is_ready(master: Container) -> bool:
    """True if this master leads."""
    try:
        return httpx.get(f"http://127.0.0.1:{master.port}/readyz", headers=bearer(TOKEN)).is_success
    except httpx.TransportError:
        return False


def test_a_job_on_real_nodes_outlives_its_master_on_a_standby(tmp_path: Path, rows: Path, database_url: str) -> None:
    shared: dict[str, Any] = {
        "ROLECALL_DATABASE_URL": database_url,
        "ROLECALL_BLOB_URL": (tmp_path / "blobs").as_uri(),
        "ROLECALL_STANDBY": "1",
        "ROLECALL_NODE_TIMEOUT_S": "5",
        "ROLECALL_DATA_ROOTS": str(rows.parent),
        "ROLECALL_CPU_SLOTS": "1",
    }
    with ExitStack() as stack:
        master = lambda name: stack.enter_context(container(tmp_path / name, command=(*COMMAND, "master"), **shared))  # noqa: E731
        first = master("first")
        until(lambda: is_ready(first))
        second = master("second")
        until(lambda: "standing by: another master leads" in second.text)
        name = stack.enter_context(address(first.port))
        for role in ("trainer", "parameter-server"):
            stack.enter_context(node(tmp_path / role, name.port, role, **shared))
        # The driver rank's node is not in a master's container, and so does not die with it.
        driver = node(tmp_path / "driver", name.port, "master", command=(*COMMAND, "node"), **shared)
        stack.enter_context(driver)
        until(lambda: all(first.node(one) for one in ("trainer", "parameter-server", "driver")), 240)
        request = long_job(rows, trainers=1, max_steps=2000, checkpoint_every_steps=100)
        job = accepted(httpx.post(f"http://127.0.0.1:{first.port}/jobs", headers=bearer(TOKEN), json=request))["id"]
        ask = lambda master: master.ask(f"/jobs/{job}")  # noqa: E731
        before = until(lambda: (found := ask(first))["progress"]["step"] > 100 and found, 240)
        os.kill(first.process.pid, signal.SIGKILL)
        until(lambda: is_ready(second))
        name.master, taken_over = second.port, datetime.now(UTC)
        ended: dict[str, Any] = until(lambda: (found := ask(second))["state"] == "succeeded" and found, 150)
        assert len(ended["attempts"]) == 1
        pids = lambda one: [worker["pid"] for worker in one["attempts"][0]["workers"]]  # noqa: E731
        assert pids(ended) == pids(before)
        assert ended["result"]["steps"] == 2000
        recorded = second.ask(f"/jobs/{job}/checkpoints")["checkpoints"]
        assert any(datetime.fromisoformat(one["created_at"]) > taken_over for one in recorded), recorded
