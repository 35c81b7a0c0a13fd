# pyright: standard
"""Containers as processes: `python -m rolecall` with an environment of its own, which may be a bad one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.ports import free_port

TOKEN, NODE_TOKEN = "u" * 16, "n" * 16
HEALTHCHECK = Path(__file__).parents[1] / "docker/healthcheck"
COMMAND = (sys.executable, "-m", "rolecall")


@dataclass
class Container:
    """A running container; `log` is what it printed, `port` where its control program or its node listens."""

    process: subprocess.Popen[bytes]
    log: Path
    port: int

    @property
    def text(self) -> str:
        """Its output so far."""
        return self.log.read_text()

    def ends(self, timeout: float = 30) -> int:
        """Wait for its end; return the exit code."""
        return self.process.wait(timeout)

    def terminate(self) -> None:
        """Ask it to end, as an engine does."""
        self.process.send_signal(signal.SIGTERM)

    def ask(self, path: str) -> Any:
        """An answer as JSON, with the users' token; None while nobody listens."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=bearer(TOKEN), timeout=10)
        except httpx.TransportError:
            return None
        return answer.raise_for_status().json()

    def node(self, name: str, **is_so: Any) -> dict[str, Any] | None:
        """The node of that name once it is alive and has these values."""
        known = {node["spec"]["name"]: node for node in (self.ask("/nodes") or {"nodes": []})["nodes"]}
        found = known.get(name)
        wanted = {"alive": True} | is_so
        return found if found and all(found[key] == value for key, value in wanted.items()) else None

    def finding(self, name: str, check: str) -> dict[str, str] | None:
        """The findings of one check by the node of that name."""
        node = self.node(name)
        return next((one for one in node["findings"] if one["check"] == check), None) if node else None


def bearer(token: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {token}"}


def environment(data: Path, **given: str) -> dict[str, str]:
    """A container's; what is empty counts as not set."""
    own = {
        "ROLE": "master",
        "MASTER_ADDR": "",
        "ROLECALL_TOKEN": TOKEN,
        "ROLECALL_NODE_TOKEN": NODE_TOKEN,
        "ROLECALL_DATA": str(data),
        "ROLECALL_HOST": "127.0.0.1",
        "ROLECALL_METRICS_PORT": "0",
    }
    return os.environ | own | given


@contextmanager
def container(
    data: Path,
    *,
    port: int | None = None,
    before: tuple[str, ...] = (),
    command: tuple[str, ...] = COMMAND,
    **given: str,
) -> Generator[Container]:
    """A container, killed in the end; `before` is put before its command line, for example `unshare -m`.

    `port` is the one it listens on: of a master ROLECALL_PORT, of a node ROLECALL_METRICS_PORT.
    """
    port = port or free_port()
    variable = "ROLECALL_PORT" if given.get("ROLE", "master") == "master" else "ROLECALL_METRICS_PORT"
    data.parent.mkdir(parents=True, exist_ok=True)
    log = data.with_name(f"{data.name}.log")
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [*before, *command], env=environment(data, **({variable: str(port)} | given)), stderr=output
        ) as process,
    ):
        try:
            yield Container(process, log, port)
        finally:
            process.kill()


@contextmanager
def node(data: Path, master: int, role: str = "trainer", **given: Any) -> Generator[Container]:
    """A node's container whose master listens on the port `master` of this machine.

    `given` is what `container` takes.
    """
    own: dict[str, Any] = {
        "ROLE": role,
        "MASTER_ADDR": "127.0.0.1",
        "ROLECALL_PORT": str(master),
        "ROLECALL_NODE_NAME": data.name,
    }
    with container(data, **(own | given)) as started:
        yield started


def until(look: Callable[[], Any], timeout: float = 60) -> Any:
    """Look until there is something; return it."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


def refused(code: int, *arguments: str, env: dict[str, str]) -> str:
    """The one line with which a container ends that can't be started."""
    done = subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    return line
