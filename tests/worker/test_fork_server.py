"""A real fork server, spoken to over its socket."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.node.harness import ROOT, await_true, gone, launch

from rolecall.spec.role import Role
from rolecall.worker.fork_server import built_in_modules


class _Server:
    def __init__(self, folder: Path, role: str, *arguments: str) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "rolecall.worker.fork_server", str(theirs.fileno())]
        environment = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
        self.errors = (folder / "errors.txt").open("w+")
        self.process = subprocess.Popen(
            [*command, "--play", "tests.node.plays:play", "--role", role, *arguments],
            env=os.environ | environment | {"PYTHONPATH": f"{ROOT / 'services'}:{ROOT}:{folder}"},
            pass_fds=(theirs.fileno(),),
            stderr=self.errors,
        )
        theirs.close()
        self.file = ours.makefile("rwb", buffering=0)
        ours.close()

    def send(self, line: bytes) -> None:
        self.file.write(line + b"\n")

    def receive(self) -> dict[str, Any]:
        return json.loads(self.file.readline())

    def fork(self, job: str, act: str, workdir: Path) -> dict[str, Any]:
        request = {
            "key": f"{job}/1/0", "launch": launch(job, act).model_dump(mode="json"), "workdir": str(workdir),
            "cache": str(workdir), "master_url": "http://m", "token": "t", "env": {},
        }  # fmt: skip
        self.send(json.dumps(request).encode())
        return self.receive()


# The server imports torch.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    with _running(tmp_path_factory.mktemp("server"), "trainer") as server:
        yield server


@contextmanager
def _running(folder: Path, role: str, *arguments: str) -> Generator[_Server]:
    server = _Server(folder, role, *arguments)
    try:
        assert server.receive() == {"kind": "ready"}
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        server.file.close()
        server.errors.close()


def test_it_has_one_thread_and_says_nothing(server: _Server) -> None:
    assert len(os.listdir(f"/proc/{server.process.pid}/task")) == 1
    server.errors.seek(0)
    assert server.errors.read() == ""


@pytest.mark.parametrize("role", ["stage", "observer"])
def test_the_modules_of_a_role_start_no_thread(role: str, tmp_path: Path) -> None:
    with _running(tmp_path, role) as server:
        test_it_has_one_thread_and_says_nothing(server)


def test_the_modules_of_a_role_are_those_of_all_built_in_workloads() -> None:
    package = "rolecall.workloads"
    workloads = {name.removeprefix(f"{package}.") for name in built_in_modules(Role.TRAINER)}
    assert workloads == {"embedding_ddp.trainer", "rnn_lm.trainer", "reinforce.trainer", "preflight.worker"}


def test_fork_and_exit(server: _Server, tmp_path: Path) -> None:
    forked = server.fork("one", "succeed", tmp_path)
    assert forked["kind"] == "forked"
    assert server.receive() == {"kind": "exited", "key": "one/1/0", "pid": forked["pid"], "status": 0}
    assert (tmp_path / "log.txt").read_text() == "hello from one/1/0\n"


def test_the_client_of_a_worker_imports_nothing(server: _Server, tmp_path: Path) -> None:
    """It would do so in each worker of each job, before the gang can meet."""
    server.fork("one", "connect", tmp_path)
    assert server.receive()["status"] == 0
    assert (tmp_path / "log.txt").read_text().endswith("imported []\n")


def test_a_worker_is_killed_before_its_node_when_memory_runs_out(server: _Server, tmp_path: Path) -> None:
    pid = server.fork("two", "stay", tmp_path)["pid"]
    of_worker, of_server = (Path(f"/proc/{one}/oom_score_adj") for one in (pid, server.process.pid))
    await_true(lambda: int(of_worker.read_text()) == max(500, int(of_server.read_text())))
    os.kill(pid, signal.SIGKILL)
    assert server.receive()["key"] == "two/1/0"


def test_a_signal_is_a_negative_status(server: _Server, tmp_path: Path) -> None:
    pid = server.fork("two", "stay", tmp_path)["pid"]
    os.kill(pid, signal.SIGKILL)
    assert server.receive()["status"] == -signal.SIGKILL


def test_what_a_worker_raises_is_in_its_log(server: _Server, tmp_path: Path) -> None:
    server.fork("three", "unheard_of", tmp_path)
    assert server.receive()["status"] == 1
    assert "KeyError: 'unheard_of'" in (tmp_path / "log.txt").read_text()


def test_the_end_of_a_process_of_a_preloaded_module_is_no_reply(tmp_path: Path) -> None:
    """The module's process ends with the first signal that the server gets."""
    (tmp_path / "spawning.py").write_text("import os\nif os.fork() == 0:\n    os._exit(0)\n")
    with _running(tmp_path, "trainer", "--preload", "spawning") as server:
        forked = server.fork("spawning", "succeed", tmp_path)
        assert forked["kind"] == "forked"
        assert server.receive() == {"kind": "exited", "key": "spawning/1/0", "pid": forked["pid"], "status": 0}


def test_what_can_not_be_forked_is_answered(server: _Server, tmp_path: Path) -> None:
    refused = server.fork("four", "succeed", tmp_path / "missing")
    assert (refused["kind"], refused["key"]) == ("refused", "four/1/0")
    assert "missing" in refused["message"]
    server.send(b'{"key": "five/1/0"}')
    assert server.receive()["key"] == "five/1/0"
    server.send(b"no json")
    assert server.receive()["kind"] == "refused"


@pytest.mark.parametrize("act", ["daemonize", "renounce", "disown"])
def test_no_process_outlives_its_worker(server: _Server, tmp_path: Path, act: str) -> None:
    other = server.fork("other", "daemonize", tmp_path)["pid"]
    spared = _fled(tmp_path)
    (tmp_path / "own").mkdir()
    worker = server.fork(act, act, tmp_path / "own")["pid"]
    fled = _fled(tmp_path / "own")
    os.kill(worker, signal.SIGKILL)
    assert server.receive()["pid"] == worker
    assert not Path(f"/proc/{fled}").exists(), "the report of the end waits for it, and nobody leaves a zombie"
    assert not gone({spared}, 0.1), "the processes of other workers continue"
    os.kill(other, signal.SIGKILL)
    assert server.receive()["pid"] == other
    assert not Path(f"/proc/{spared}").exists()


def test_processes_that_never_stay_the_same_end_too(server: _Server, tmp_path: Path) -> None:
    hops = tmp_path / "scratch/hops"
    hops.parent.mkdir()
    worker = server.fork("hop", "hop", tmp_path)["pid"]
    await_true(lambda: hops.exists() and hops.stat().st_size > 100)
    os.kill(worker, signal.SIGKILL)
    assert server.receive()["pid"] == worker
    assert psutil.Process(server.process.pid).children() == []
    size = hops.stat().st_size
    # Nothing is to happen: one process that is left would add hundreds within this time.
    time.sleep(0.2)
    assert hops.stat().st_size == size


def _fled(workdir: Path) -> int:
    """The process that a worker has started, when its log names it."""
    log = workdir / "log.txt"
    await_true(lambda: "fled" in log.read_text() and log.read_text().endswith("\n"))
    return int(log.read_text().split("fled ")[1].split()[0])


def test_it_ends_with_its_node_and_takes_the_workers_along(server: _Server, tmp_path: Path) -> None:
    pid = server.fork("last", "daemonize", tmp_path)["pid"]
    fled = _fled(tmp_path)
    server.file.close()
    assert server.process.wait(2) == 0
    assert gone({pid, fled}, 1.0)
