"""Callers without a token take turns, so that their calls don't delay those of others."""

import asyncio
import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.master.harness import TOKEN
from tests.security.test_crowd import PATIENT, ask, held
from tests.security.test_edge import connection_table, head, limited

from rolecall.edge.listener import ACCEPTS
from rolecall.master.api import unauthenticated
from rolecall.master.api.unauthenticated import UnauthenticatedTurns

LOGIN = {"Content_Type": "application/x-www-form-urlencoded", "Sec_Fetch_Site": "same-origin"}


class App:
    """An application whose calls last until the test ends them."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.end = asyncio.Event()
        self.turns = UnauthenticatedTurns()
        self.tasks: list[asyncio.Task[list[Message]]] = []

    async def _serve(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.running.append(scope["client"][0])
        await self.end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    def call(self, address: str) -> asyncio.Task[list[Message]]:
        """Begin a call; the result is its response."""
        self.tasks.append(asyncio.create_task(self._call(address)))
        return self.tasks[-1]

    async def _call(self, address: str) -> list[Message]:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        scope: Scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [], "client": (address, 1)}
        await self.turns.serve(self._serve, scope, receive, send)
        return sent


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_unauthenticated_clients_are_served_one_at_a_time_and_their_addresses_take_turns() -> None:
    app = App()
    for _ in range(50):
        app.call("flood")
    app.call("probe")
    await settled()
    assert app.running == ["flood"]
    app.end.set()
    answers = await asyncio.gather(*app.tasks)
    assert [answer[0]["status"] for answer in answers] == [200] * 51
    assert app.running.index("probe") == 1, "a probe waits for one call of another address"


async def test_a_turn_is_followed_by_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unauthenticated, "_MAX_REST_S", 3600.0)
    monkeypatch.setattr(unauthenticated, "_REST", 1e9)
    app = App()
    app.end.set()
    assert (await app.call("a"))[0]["status"] == 200
    second = app.call("b")
    await settled()
    assert app.running == ["a"]
    second.cancel()


async def test_unauthenticated_clients_that_wait_too_long_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unauthenticated, "_WAIT_S", 0.01)
    monkeypatch.setattr(unauthenticated, "_MOST_WAITING", 3)
    app = App()
    first = app.call("a")
    await settled()
    late = [app.call("a") for _ in range(4)]
    await settled()
    assert [one.done() for one in late] == [False, False, False, True], "no more wait than an address has connections"
    answers = await asyncio.gather(*late)
    assert {answer[0]["status"] for answer in answers} == {429}
    assert (b"connection", b"close") in answers[0][0]["headers"]
    app.end.set()
    assert (await first)[0]["status"] == 200
    monkeypatch.setattr(unauthenticated, "_WAIT_S", 10.0)
    assert (await app.call("a"))[0]["status"] == 200, "they took no turn"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head("GET", "/healthz"), 200),
        (head("GET", "/ui/static/style.css"), 200),
        (head("GET", "/jobs"), 401),
        (head("GET", "/internal/nodes/x"), 401),
        (head("GET", "/"), 303),
        (head("GET", "/internal/nodes/x", TOKEN), 403),
        (head("POST", "/ui/login", Content_Length="7", **LOGIN) + b"token=x", 401),
    ],
)
async def test_every_call_without_a_token_takes_a_turn(
    sent: bytes, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unauthenticated, "_MOST_WAITING", 10)
    async with limited(tmp_path, monkeypatch, PATIENT) as (client, address):
        assert f" {status} ".encode() in (await ask(address, sent.replace(b"Host:", b"Connection: close\r\nHost:")))
        monkeypatch.setattr(unauthenticated, "_MOST_WAITING", 0)
        refused = await ask(address, sent)
        assert b" 429 " in refused
        assert b"\r\nconnection: close\r\n" in refused.lower()
        assert (await client.user("GET", "/jobs")).is_success
        style = head("GET", "/ui/static/style.css", TOKEN, Connection="close")
        assert b" 200 " in await ask(address, style), "the files of the page for its users"


async def test_a_slow_log_in_holds_no_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path, monkeypatch, PATIENT) as (client, address):
        slow = head("POST", "/ui/login", Content_Length="7", **LOGIN) + b"tok"
        with held(address, *[slow] * 5) as opened:
            assert b" 200 " in await ask(address, head("GET", "/healthz", Connection="close"))
            opened[0].sendall(b"en=x")
            opened[0].settimeout(5)
            loop = asyncio.get_running_loop()
            assert b" 401 " in await loop.run_in_executor(None, opened[0].recv, 100)
        assert (await client.http.get("/healthz")).is_success


async def test_a_pass_of_the_event_loop_accepts_few_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, PATIENT) as (client, address):
        before = connection_table(client).total
        with ExitStack() as stack:
            for _ in range(10 * ACCEPTS):  # The kernel completes the handshakes; the loop doesn't run meanwhile.
                stack.enter_context(socket.create_connection(address, timeout=5))
            sizes = [before]
            async with asyncio.timeout(5):
                while sizes[-1] < before + 10 * ACCEPTS:
                    await asyncio.sleep(0)
                    sizes.append(connection_table(client).total)
            assert max(after - one for one, after in pairwise(sizes)) <= ACCEPTS
