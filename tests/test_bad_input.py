# pyright: standard
"""An invalid configuration causes a one-line error and an exit code, or retries if these can help, but never a hang."""

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.containers import (
    HEALTHCHECK,
    TOKEN,
    Container,
    container,
    environment,
    node,
    refused,
    until,
)
from tests.ports import free_port
from tests.prerequisites import require_namespaces
from tests.volumes import filled, mounted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
# The control program without the node of its container.
CONTROL = (sys.executable, "-m", "rolecall", "master")


def healthcheck(node: Container) -> tuple[int, str]:
    """The exit code and the standard error of the containers' health check in the container of a node."""
    variables = {"ROLE": "trainer", "ROLECALL_HOST": "127.0.0.1", "ROLECALL_METRICS_PORT": str(node.port)}
    done = subprocess.run([HEALTHCHECK], env=os.environ | variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@contextmanager
def control(folder: Path, port: int | None = None) -> Generator[Container]:
    """A control program that accepts requests."""
    with container(folder / "master", port=port, command=CONTROL) as master:
        until(lambda: master.ask("/healthz"))
        yield master


def nodes_command(master: Container) -> str:
    """The output of `rolecall nodes`."""
    given = os.environ | {"ROLECALL_URL": f"http://127.0.0.1:{master.port}", "ROLECALL_TOKEN": TOKEN}
    command = [sys.executable, "-m", "rolecall.cli", "nodes"]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("program", ["master", "node"])
def test_a_data_folder_that_can_not_be_written_to(tmp_path: Path, program: str) -> None:
    (tmp_path / "file").write_text("in the way")
    given = environment(tmp_path / "file" / "data", MASTER_ADDR="127.0.0.1", ROLECALL_PORT=str(free_port()))
    line = refused(os.EX_CONFIG, program, env=given)
    assert line == f"rolecall: ROLECALL_DATA={tmp_path}/file/data: Not a directory; give a folder to write to"


def test_a_masters_full_volume_at_the_start(tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "1m") as data, filled(data):
        line = refused(os.EX_CONFIG, "master", env=environment(data, ROLECALL_PORT=str(free_port())))
    assert line.startswith(f"rolecall: ROLECALL_DATA={data}: No space left on device; free some space there")


def test_a_taken_port_of_the_master(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refused(os.EX_CONFIG, "master", env=environment(tmp_path, ROLECALL_PORT=str(port)))
    assert line.startswith(f"rolecall: ROLECALL_PORT={port} on ROLECALL_HOST=127.0.0.1: Address already in use")


def test_the_master_waits_for_an_unavailable_database(tmp_path: Path) -> None:
    url = f"postgresql://me:a-secret@127.0.0.1:{free_port()}/rolecall"
    with container(tmp_path / "master", command=CONTROL, ROLECALL_DATABASE_URL=url) as master:
        until(lambda: "the database (ROLECALL_DATABASE_URL) does not answer: " in master.text)
        assert master.process.poll() is None
        assert len(master.text.splitlines()) == 1
        assert "a-secret" not in master.text


@pytest.mark.parametrize("url", ["my database", "mysql://me:a-secret@host/name", "postgresql+asyncpg://host/name"])
def test_an_invalid_database_url_is_a_one_line_error(tmp_path: Path, url: str) -> None:
    line = refused(os.EX_CONFIG, "master", env=environment(tmp_path, ROLECALL_DATABASE_URL=url))
    why = "ROLECALL_DATABASE_URL is not a URL like postgresql://user:password@host/name"
    assert line == f"rolecall: {why} (valid schemes: postgresql, sqlite)"


def test_an_invalid_name_is_a_one_line_error(tmp_path: Path) -> None:
    given = environment(tmp_path, ROLE="trainer", MASTER_ADDR="127.0.0.1", ROLECALL_NODE_NAME="Not Legal")
    assert "ROLECALL_NODE_NAME" in refused(os.EX_CONFIG, env=given)


def test_a_node_in_the_data_folder_of_another_node(tmp_path: Path) -> None:
    with node(tmp_path / "n", free_port()) as first:
        until(lambda: (tmp_path / "n/nodes/n/node.lock").exists() and first.ask("/healthz"))
        given = environment(tmp_path / "n", ROLE="trainer", MASTER_ADDR="127.0.0.1", ROLECALL_NODE_NAME="n")
        line = refused(os.EX_CONFIG, env=given)
    assert line.startswith(f"rolecall: another node n uses ROLECALL_DATA={tmp_path}/n; give one of them another")


def test_a_wrong_token_of_a_node(tmp_path: Path) -> None:
    with control(tmp_path) as master, node(tmp_path / "n", master.port, ROLECALL_NODE_TOKEN="another" * 3) as lost:
        assert lost.ends(90) == os.EX_CONFIG
        said = "give this node a token that the master accepts"
        assert said in lost.text.splitlines()[-1]


def test_a_node_waits_for_a_master_whose_name_does_not_resolve(tmp_path: Path) -> None:
    with node(tmp_path / "n", 8080, MASTER_ADDR="master.invalid") as waiting:
        health = until(lambda: (now := waiting.ask("/healthz")) and "invalid" in now.get("waiting_for", "") and now)
        assert health["status"] == "waiting"
        assert health["waiting_for"].startswith("no route to the master yet: MASTER_ADDR=master.invalid: ")
        assert waiting.text.count("MASTER_ADDR=master.invalid") == 1
        waiting.terminate()
        assert waiting.ends(5) == 0


def test_a_node_registers_with_a_master_that_starts_later(tmp_path: Path) -> None:
    port = free_port()
    with node(tmp_path / "n", port) as waiting:
        until(lambda: "connection failed (" in waiting.text)
        assert "is the master up" in waiting.ask("/healthz")["waiting_for"]
        refused, said = healthcheck(waiting)
        assert refused == 1
        assert f"port {waiting.port}: the node has not registered yet; it waits: the master is unavailable" in said
        with control(tmp_path, port) as master:
            until(lambda: master.node("n"))
            until(lambda: waiting.ask("/healthz")["status"] == "ok", 5)
            assert healthcheck(waiting) == (0, "")
        until(lambda: waiting.ask("/healthz")["status"] == "waiting")
        assert healthcheck(waiting) == (0, ""), "it continues its workers without its master"


def test_a_master_that_accepts_connections_but_does_not_answer_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, node(tmp_path / "n", silent.getsockname()[1]) as waiting:
        for what in ("its fork server, which imports torch", "the first answer of its master"):
            until(lambda what=what: (waiting.ask("/healthz") or {}).get("waiting_for") == what)
        until(lambda: "it accepts connections but does not answer" in waiting.text)
        assert "something else listening" in waiting.ask("/healthz")["waiting_for"]
        assert waiting.process.poll() is None


def test_two_nodes_with_the_same_name(tmp_path: Path) -> None:
    with control(tmp_path) as master, ExitStack() as stack:
        stack.enter_context(node(tmp_path / "n", master.port))
        incarnation = until(lambda: (found := master.node("n")) and found["heartbeat_age_s"] > 0.5 and found)[
            "incarnation"
        ]
        second = stack.enter_context(node(tmp_path / "other", master.port, ROLECALL_NODE_NAME="n"))
        assert second.ends(120) == os.EX_CONFIG
        assert "the name n is taken by a live node at 127.0.0.1" in second.text.splitlines()[-1]
        assert master.node("n")["incarnation"] == incarnation  # type: ignore[index]


def test_a_small_shared_memory_is_a_warning(tmp_path: Path) -> None:
    require_namespaces("--mount")
    small = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh")
    with control(tmp_path) as master, node(tmp_path / "n", master.port, before=small):
        found = until(lambda: master.finding("n", "shm"))
        assert found["level"] == "warning"
        assert "shm_size" in found["remedy"]
        shown = nodes_command(master)
        assert "warning n: its shared memory (/dev/shm) has 64 MiB" in shown


def test_a_node_with_a_full_disk_gets_no_workers_until_there_is_space(tmp_path: Path) -> None:
    with ExitStack() as stack:
        data = stack.enter_context(mounted(tmp_path / "n", "64m"))
        master = stack.enter_context(control(tmp_path))
        stack.enter_context(node(data, master.port))
        until(lambda: master.finding("n", "disk"))
        with filled(data):
            until(lambda: (master.finding("n", "disk") or {}).get("level") == "error", 30)
            assert "unfit" in nodes_command(master)
            assert "error n: its data folder" in nodes_command(master)
        until(lambda: (master.finding("n", "disk") or {}).get("level") != "error", 30)
