"""The fork server seen from the node: what happens when it no longer answers."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest
from tests.node.harness import gone, launch

from rolecall.node.fork_client import ForkClient, ForkServerDied
from rolecall.spec.fork import Exited, Forked, ForkRequest


@pytest.mark.slow
def test_a_fork_server_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    async def flow() -> None:
        client = ForkClient()
        running = asyncio.create_task(client.run())
        await client.wait_ready()
        assert client.pid is not None
        server, client.patience_s = client.pid, 0.2
        os.kill(server, signal.SIGSTOP)
        request = ForkRequest(
            key="stuck/1/0", launch=launch("stuck", "stay"), workdir=tmp_path, cache=tmp_path,
            master_url="http://127.0.0.1:9", token="none", env={},
        )  # fmt: skip
        with pytest.raises(ForkServerDied, match=r"no answer for 0.2 s"):
            await client.fork(request)
        assert gone({server}, 5.0)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(flow())


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EMFILE, errno.ESRCH])
def test_without_a_pidfd_the_fork_server_s_word_is_enough(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)

    async def flow() -> int:
        client = ForkClient()
        answer = client._pending["job/1/0"] = asyncio.get_running_loop().create_future()  # pyright: ignore[reportPrivateUsage]
        client._hear(Forked(key="job/1/0", pid=os.getpid()))  # pyright: ignore[reportPrivateUsage]
        worker = await answer
        client._hear(Exited(key="job/1/0", pid=os.getpid(), status=3))  # pyright: ignore[reportPrivateUsage]
        return await worker.ended

    assert asyncio.run(flow()) == 3
