"""The fork server seen from the node: what happens when it no longer answers."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.node.harness import gone, launch

from rolecall.node.fork_client import ForkClient, ForkServerDied
from rolecall.spec.fork import ForkRequest


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
