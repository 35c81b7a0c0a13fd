"""The entry point of containers, `python -m rolecall`."""

import os
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.containers import COMMAND, TOKEN, Container, bearer, container, environment, refused, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
NAME = "master-0"


def programs(started: Container) -> dict[str, psutil.Process]:
    """A container's programs by name, `master` and `node`."""
    return {_name_of(child): child for child in psutil.Process(started.process.pid).children()}


def family(started: Container) -> list[psutil.Process]:
    """All descendant processes of the container."""
    return psutil.Process(started.process.pid).children(recursive=True)


def _name_of(process: psutil.Process) -> str:
    try:
        return (process.cmdline() or [""])[-1]
    except psutil.NoSuchProcess:
        return ""  # The process has just ended.


def await_node(started: Container, incarnation: str = "") -> dict[str, Any]:
    """Wait until the container's own node is alive, with an `incarnation` other than the given one."""
    look = lambda: (node := started.node(NAME)) and node["incarnation"] != incarnation and node  # noqa: E731
    return until(look)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Container]:
    """A container whose node has registered."""
    with container(tmp_path / "data", ROLECALL_NODE_NAME=NAME) as one:
        await_node(one)
        yield one


def test_the_masters_container_runs_a_control_program_and_a_node(started: Container) -> None:
    assert await_node(started)["spec"]["role"] == "master"
    assert programs(started).keys() == {"master", "node"}


def test_the_control_program_is_restarted_without_the_node(started: Container) -> None:
    incarnation = await_node(started)["incarnation"]
    before = programs(started)
    before["master"].kill()
    until(lambda: programs(started).get("master", before["master"]) != before["master"])
    assert await_node(started)["incarnation"] == incarnation
    assert programs(started)["node"] == before["node"]


def test_the_node_is_restarted_without_the_control_program(started: Container) -> None:
    incarnation = await_node(started)["incarnation"]
    before = programs(started)
    before["node"].kill()
    await_node(started, incarnation)
    assert programs(started)["master"] == before["master"]
    assert programs(started)["node"] != before["node"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_container(started: Container, number: signal.Signals) -> None:
    processes = family(started)
    assert len(processes) >= 2
    started.process.send_signal(number)
    assert started.ends(20) == (0 if number is signal.SIGTERM else -number)
    assert not psutil.wait_procs(processes, timeout=5)[1]


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
        ({"ROLECALL_NODE_NAME": "Not Legal"}, "ROLECALL_NODE_NAME (by default the host name) is 'Not Legal'"),
        ({"ROLE": "trainer", "MASTER_ADDR": "m", "ROLECALL_NODE_TOKEN": ""}, "ROLECALL_NODE_TOKEN is not set; set it"),
    ],
)
def test_a_bad_environment_is_one_line_and_exit_code_78(tmp_path: Path, given: dict[str, str], said: str) -> None:
    line = refused(os.EX_CONFIG, env=environment(tmp_path, **given))
    assert line.startswith("rolecall: ")
    assert said in line


def test_bad_usage_is_exit_code_64(tmp_path: Path) -> None:
    line = refused(os.EX_USAGE, "trainer", env=environment(tmp_path))
    assert line == "usage: python -m rolecall [master|node]"


def test_a_late_configuration_error_of_the_control_program_ends_the_container(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = environment(tmp_path, ROLECALL_PORT=str(port := taken.getsockname()[1]))
        done = subprocess.run(COMMAND, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == os.EX_CONFIG
    assert f"rolecall: ROLECALL_PORT={port} on ROLECALL_HOST=127.0.0.1: Address already in use" in done.stderr


def test_a_late_configuration_error_of_its_node_does_not_end_the_control_program(tmp_path: Path) -> None:
    with ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        metrics = str(taken.getsockname()[1])
        own: dict[str, Any] = {"ROLECALL_NODE_NAME": NAME, "ROLECALL_METRICS_PORT": metrics}
        started = stack.enter_context(container(tmp_path / "data", **own))
        said = f"rolecall: ROLECALL_METRICS_PORT={metrics} on 127.0.0.1: Address already in use"
        until(lambda: started.text.count(said) >= 2)
        assert until(lambda: started.ask("/healthz")) == {"status": "ok"}
        taken.close()
        await_node(started)


def test_a_container_starts_again_after_a_power_failure(tmp_path: Path) -> None:
    """The boot id has changed, and the stored node has never been drained."""
    with container(tmp_path / "data", ROLECALL_NODE_NAME=NAME) as before:
        incarnation = await_node(before)["incarnation"]
        before.process.kill()
        before.ends()
    with closing(sqlite3.connect(tmp_path / "data" / "rolecall.db")) as database, database:
        database.execute("UPDATE nodes SET spec = json_set(spec, '$.machine.boot_id', 'an-earlier-boot')")
    with container(tmp_path / "data", ROLECALL_NODE_NAME=NAME, ROLECALL_NODE_TIMEOUT_S="300") as again:
        await_node(again, incarnation)
        assert "ended with" not in again.text


def test_a_container_with_ipv6_addresses(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    own: dict[str, Any] = {"ROLECALL_HOST": "::1", "MASTER_ADDR": "::1", "ROLECALL_NODE_NAME": NAME}
    with container(tmp_path / "data", **own) as started:
        until(lambda: f"master listening on http://[::1]:{started.port}" in started.text)
        ask = lambda: httpx.get(f"http://[::1]:{started.port}/nodes", headers=bearer(TOKEN)).json()["nodes"]  # noqa: E731
        (node,) = until(lambda: (found := ask()) and found[0]["alive"] and found)
        assert node["spec"]["address"] == "::1"
        assert "ended with" not in started.text
