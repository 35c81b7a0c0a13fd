# pyright: reportPrivateUsage=false
"""The fork server seen from the node: what happens when it no longer answers."""

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.node.harness import PLAYS, ROOT, gone, launch

from rolecall.node import fork_client
from rolecall.node.fork_client import COMMAND, ForkClient, ForkServerDied
from rolecall.spec.fork import Exited, Forked, ForkRequest, NotForked

REQUEST = ForkRequest(
    key="mine/1/0", launch=launch("mine", "stay"), workdir=Path("/work"), data=Path("/data"), cache=Path("/cache"),
    master_url="http://127.0.0.1:9", token="none", env={},
)  # fmt: skip


@pytest.mark.slow
def test_code_in_the_folder_where_a_node_was_started_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise SystemExit('code of the working folder')")
    done = subprocess.run([*COMMAND, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
async def test_a_fork_server_that_does_not_answer_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # There it finds what its workers play.
    client = ForkClient(PLAYS)
    running = asyncio.create_task(client.run())
    await asyncio.wait_for(client.wait_ready(), 60)
    assert client.pid is not None
    server, client.timeout_s = client.pid, 0.2
    os.kill(server, signal.SIGSTOP)
    request = ForkRequest(
        key="stuck/1/0", launch=launch("stuck", "stay"), workdir=tmp_path, data=tmp_path, cache=tmp_path,
        master_url="http://127.0.0.1:9", token="none", env={},
    )  # fmt: skip
    with pytest.raises(ForkServerDied, match=r"did not answer for 0.2 s"):
        await client.fork(request)
    assert gone({server}, 5.0)
    running.cancel()
    await asyncio.wait({running})


_STARTING_SERVER = """
import pathlib, socket, sys, time
with socket.socket(fileno=int(sys.argv[1])) as channel:
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
    channel.sendall(b'{"kind": "ready"}\\n')
    channel.recv(1)
"""


async def test_a_fork_server_that_still_starts_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next start would take as long."""
    monkeypatch.setattr(fork_client, "COMMAND", (sys.executable, "-c", _STARTING_SERVER))
    client = ForkClient([str(tmp_path / "imported")])
    client.timeout_s = client.ready_timeout_s = 0.2
    running = asyncio.create_task(client.run())
    try:
        with pytest.raises(ForkServerDied, match=r"not ready yet after 0\.2 s"):
            await asyncio.wait_for(client.fork(REQUEST), 20)
        (tmp_path / "imported").touch()
        await asyncio.wait_for(client.wait_ready(), 20)
        assert client.restarts == 0
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_worker_has_the_whole_time_for_its_fork_when_the_server_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "COMMAND", (sys.executable, "-c", _STARTING_SERVER))
    client = ForkClient([str(tmp_path / "imported")])
    client.timeout_s = 0.2
    running = asyncio.create_task(client.run())
    forking = asyncio.create_task(client.fork(REQUEST))
    try:
        await asyncio.sleep(0.5)
        assert not forking.done()
        client.timeout_s = 20.0
        (tmp_path / "imported").touch()
        with pytest.raises(ForkServerDied, match="the fork server ended"):  # At the request.
            await asyncio.wait_for(forking, 20)
    finally:
        running.cancel()
        await asyncio.wait({running, forking})


async def test_a_fork_server_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job can use up the processes of the machine."""
    (tmp_path / "imported").touch()
    monkeypatch.setattr(fork_client, "COMMAND", (sys.executable, "-c", _STARTING_SERVER))
    start: Any = subprocess.Popen
    failures = [BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))]

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return start(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", fail_once)
    client = ForkClient([str(tmp_path / "imported")])
    running = asyncio.create_task(client.run())
    try:
        await asyncio.wait_for(client.wait_ready(), 20)
        assert client.restarts == 1
    finally:
        running.cancel()
        await asyncio.wait({running})
    assert "Resource temporarily unavailable" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EMFILE, errno.ESRCH])
async def test_where_the_kernel_gives_no_pidfd_the_servers_word_counts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """ENOSYS and EPERM come from old kernels and seccomp filters, ESRCH of a process that has ended already."""

    def refused(_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)
    ours, theirs = socket.socketpair()
    client = ForkClient()
    _, client._writer = await asyncio.open_connection(sock=ours)
    client._ready.set()
    with theirs:
        forking = asyncio.create_task(client.fork(REQUEST))
        await asyncio.sleep(0)
        client._read(Forked(key=REQUEST.key, pid=2**22).model_dump_json().encode())
        worker = await forking
        client._read(Exited(key=REQUEST.key, pid=2**22, status=3).model_dump_json().encode())
        client._writer.close()
        assert await worker.ended == 3
    assert (os.strerror(number) in caplog.text) is (number != errno.ESRCH)


_BROKEN_SERVER = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as channel:
    channel.sendall(b'{"kind": "ready"}\\n')
    channel.recv(1 << 16)
    channel.sendall(open(sys.argv[2], "rb").read())
    channel.recv(1)
"""


@pytest.mark.parametrize(
    "reply",
    [
        NotForked(key="", message="garbled").model_dump_json(),
        Forked(key="other/1/0", pid=2**22).model_dump_json(),
        Exited(key="other/1/0", pid=2**22, status=0).model_dump_json(),
        "x" * (3 << 20),  # More than the node reads as a line.
    ],
    ids=["refused", "forked", "exited", "endless"],
)
async def test_a_fork_server_with_a_wrong_reply_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: str
) -> None:
    (tmp_path / "reply").write_text(f"{reply}\n")
    monkeypatch.setattr(fork_client, "COMMAND", (sys.executable, "-c", _BROKEN_SERVER))
    client = ForkClient([str(tmp_path / "reply")])
    running = asyncio.create_task(client.run())
    try:
        for _ in range(2):
            with pytest.raises(ForkServerDied, match="the fork server ended with SIGTERM"):
                await asyncio.wait_for(client.fork(REQUEST), 20)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait({running})


@pytest.mark.parametrize("pid", [-5, 0, 1, 1 << 23, 1 << 40])
def test_no_worker_has_a_process_id_that_stands_for_other_processes(pid: int) -> None:
    with pytest.raises(ValidationError, match="pid"):
        Forked(key=REQUEST.key, pid=pid)
