"""The route to the master, asked of this machine's kernel."""

import asyncio
import logging
import threading

import pytest

from rolecall.network.routes import Route, await_route


async def test_the_route_to_loopback() -> None:
    route = await await_route("127.0.0.1", 8080, print)
    assert route == Route("lo", "127.0.0.1")
    assert route.environment["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.slow
@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "a" * 64])
async def test_a_name_that_does_not_resolve_is_said_once(caplog: pytest.LogCaptureFixture, host: str) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(TimeoutError):
        await asyncio.wait_for(await_route(host, 8080, print), 0.6)
    assert [(f"MASTER_ADDR={host}" in record.message) for record in caplog.records] == [True]


async def test_a_machine_without_a_free_thread_is_a_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job can use up the threads for a while."""
    reasons: list[str] = []
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def fail_once(thread: threading.Thread) -> None:
        if failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    assert await asyncio.wait_for(await_route("127.0.0.1", 8080, reasons.append), 10) == Route("lo", "127.0.0.1")
    assert reasons == ["no route to the master yet: MASTER_ADDR=127.0.0.1: can't start new thread"]
