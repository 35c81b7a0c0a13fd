"""What a container starts: `python -m rolecall`."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
TOKEN, NODE_TOKEN = "u" * 16, "n" * 16
COMMAND = (sys.executable, "-m", "rolecall")


def environment(data: Path, **given: str) -> dict[str, str]:
    """A container's: what is empty counts as not set."""
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


@dataclass(frozen=True)
class Container:
    """A running `python -m rolecall` whose role is master."""

    process: subprocess.Popen[str]
    url: str

    @property
    def programs(self) -> dict[str, psutil.Process]:
        """Its programs by name, `master` and `node`."""
        return {_name_of(child): child for child in psutil.Process(self.process.pid).children()}

    @property
    def family(self) -> list[psutil.Process]:
        """All processes below it."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def await_nodes(self) -> list[dict[str, Any]]:
        """The nodes, once the master answers and one of them is alive."""
        return until(self._alive_nodes)

    def _alive_nodes(self) -> list[dict[str, Any]]:
        assert self.process.poll() is None, "the container has ended"
        try:
            answer = httpx.get(f"{self.url}/nodes", headers={"Authorization": f"Bearer {TOKEN}"})
        except httpx.TransportError:
            return []  # not up yet
        return [node for node in answer.raise_for_status().json()["nodes"] if node["alive"]]


def _name_of(process: psutil.Process) -> str:
    try:
        return (process.cmdline() or [""])[-1]
    except psutil.NoSuchProcess:
        return ""  # it has just ended


def until(look: Callable[[], Any], timeout: float = 60) -> Any:
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found


@contextmanager
def container(data: Path) -> Iterator[Container]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        (data / "log").open("wb") as log,
        subprocess.Popen(COMMAND, env=environment(data, ROLECALL_PORT=str(port)), stderr=log, text=True) as process,
    ):
        try:
            yield Container(process, f"http://127.0.0.1:{port}")
        finally:
            process.kill()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Container]:
    """A container whose node has registered."""
    with container(tmp_path) as one:
        one.await_nodes()
        yield one


def test_the_masters_container_is_a_control_program_and_a_node(started: Container) -> None:
    (node,) = started.await_nodes()
    assert node["spec"]["role"] == "master"
    assert started.programs.keys() == {"master", "node"}


def test_the_control_program_dies_and_comes_back_without_the_node(started: Container) -> None:
    (life,) = (node["spec"]["started"] for node in started.await_nodes())
    before = started.programs
    before["master"].kill()
    until(lambda: started.programs.get("master", before["master"]) != before["master"])
    (node,) = started.await_nodes()
    assert node["spec"]["started"] == life
    assert started.programs["node"] == before["node"]


def test_the_node_dies_and_comes_back_without_the_control_program(started: Container) -> None:
    (life,) = (node["spec"]["started"] for node in started.await_nodes())
    before = started.programs
    before["node"].kill()
    until(lambda: any(node["spec"]["started"] != life for node in started.await_nodes()))
    assert started.programs["master"] == before["master"]
    assert started.programs["node"] != before["node"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_container(started: Container, number: signal.Signals) -> None:
    family = started.family
    assert len(family) >= 2
    started.process.send_signal(number)
    assert started.process.wait(20) == (0 if number is signal.SIGTERM else -number)
    assert not psutil.wait_procs(family, timeout=5)[1]


def refused(code: int, *arguments: str, env: dict[str, str]) -> str:
    """The one line with which a container ends that can't be started."""
    done = subprocess.run([*COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ROLE": ""}, "ROLE is not set; set it to one of: master, parameter-server, trainer"),
        ({"ROLE": "worker"}, "ROLE='worker' is unknown; set it to one of: master"),
        ({"ROLECALL_TOKEN": ""}, "ROLECALL_TOKEN is not set; set it, or ROLECALL_TOKEN_FILE"),
        ({"ROLECALL_NODE_TOKEN": "short"}, "ROLECALL_NODE_TOKEN: "),
        ({"ROLECALL_PORT": "many"}, "ROLECALL_PORT: "),
        ({"ROLECALL_PORT": "0"}, "ROLECALL_PORT: "),
        ({"ROLE": "trainer"}, "MASTER_ADDR is not set"),
    ],
)
def test_a_bad_environment_is_one_line_and_exit_code_78(tmp_path: Path, given: dict[str, str], said: str) -> None:
    line = refused(os.EX_CONFIG, env=environment(tmp_path, **given))
    assert line.startswith("rolecall: ")
    assert said in line


def test_bad_usage_is_exit_code_64(tmp_path: Path) -> None:
    line = refused(os.EX_USAGE, "trainer", env=environment(tmp_path))
    assert line == "usage: python -m rolecall [master|node]"


def test_what_a_program_finds_out_later_ends_the_container_too(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, metrics = free.getsockname()[1], taken.getsockname()[1]
        free.close()
        given = environment(tmp_path, ROLECALL_PORT=str(port), ROLECALL_METRICS_PORT=str(metrics))
        done = subprocess.run(COMMAND, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == os.EX_CONFIG
    assert f"rolecall: ROLECALL_METRICS_PORT={metrics} on 127.0.0.1: Address already in use" in done.stderr
