"""The node's loops, whose errors end neither them nor the daemon."""

import asyncio
import errno

import pytest

from rolecall.node.loops import keep_calling
from rolecall.spec.errors import SettingsError


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), OSError(errno.ESTALE, "stale file handle")])
async def test_a_call_that_fails_is_logged_and_made_again(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    calls: list[None] = []
    has_worked = asyncio.Event()

    async def tick() -> None:
        calls.append(None)
        if len(calls) == 1:
            raise error
        has_worked.set()

    calling = asyncio.create_task(keep_calling(tick, 0.01, "eviction", node="n"))
    await asyncio.wait_for(has_worked.wait(), 10)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    (record,) = caplog.records
    assert record.message == "the node's eviction failed; trying again in 0.01 s"
    assert (record.__dict__["event"], record.__dict__["node"]) == ("eviction_failed", "n")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


async def test_an_error_that_the_operator_must_fix_ends_a_loop() -> None:
    async def tick() -> None:
        raise SettingsError("the token is wrong")

    with pytest.raises(SettingsError, match="the token is wrong"):
        await asyncio.wait_for(keep_calling(tick, 0.0, "master_link", node="n"), 10)
