"""Many connections of one token, one job or anonymous clients don't block other clients."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.master.harness import NODE_TOKEN, TOKEN, Client, make_token, one_trainer
from tests.security.test_edge import QUICK, Tls, connection_table, head, limited, secure

from rolecall.edge.connection_table import Group, GroupLimit
from rolecall.spec.access import Scope
from rolecall.spec.token import attempt_token

__all__ = ["secure"]
Address = tuple[str, int]
PATIENT = replace(QUICK, head_s=10, body_window_s=10, user_body_s=10)


@contextmanager
def held(address: Address, *sent: bytes) -> Generator[list[socket.socket]]:
    """Open connections, one for each item of `sent`, which is all that they send."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(address)) for _ in sent]
        for one, data in zip(opened, sent, strict=True):
            one.sendall(data)
        yield opened


async def until_held(client: Client, group: Group, count: int) -> None:
    """Wait until the group has `count` connections."""
    async with asyncio.timeout(5):
        while connection_table(client)._sizes[group] != count:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.01)


async def ask(address: Address, sent: bytes, tls: Tls | None = None) -> bytes:
    """The answer until the server closes the connection; empty if there is none."""
    with suppress(ConnectionError):
        reader, writer = await asyncio.open_connection(*address, ssl=tls[1] if tls else None)
        writer.write(sent)
        try:
            return await asyncio.wait_for(reader.read(), 5)
        finally:
            writer.close()
    return b""


def half(token: str, path: str = "/jobs", method: str = "POST") -> bytes:
    """The head of a request whose body is never sent."""
    return head(method, path, token, Content_Length="1000000", Content_Type="application/json")


async def test_one_token_takes_its_share_of_the_connections_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, replace(PATIENT, users=GroupLimit(3, 4))) as (client, address):
        node = await one_trainer(client)
        ci, other = [await make_token(client, name, Scope.SUBMIT) for name in ("ci", "other")]
        with held(address, *[half(ci)] * 3, half(other)) as opened:
            await until_held(client, Group.USERS, 4)
            refused = await ask(address, half(ci))
            assert b" 429 " in refused
            assert b"\r\nretry-after: 10\r\n" in refused.lower()
            assert b"3 connections of this token's are open already" in refused
            assert b" 503 " in await ask(address, half(other)), "users together have their share, too"
            assert (await client.user("GET", "/jobs")).is_success
            await node.beat()
            opened[0].close()
            await until_held(client, Group.USERS, 3)
            assert b" 200 " in await ask(address, head("GET", "/jobs", other, Connection="close"))


async def test_one_jobs_workers_take_their_share_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path, monkeypatch, replace(PATIENT, workers=GroupLimit(2, 3))) as (client, address):
        node = await one_trainer(client)

        def upload(job: str) -> bytes:
            token = attempt_token(client.master.signing_key, job, 1)
            return half(token, f"/internal/jobs/{job}/attempts/1/checkpoints")

        with held(address, upload("a"), upload("a"), upload("b")):
            await until_held(client, Group.WORKERS, 3)
            download = attempt_token(client.master.signing_key, "a", 2)
            assert b" 503 " in await ask(address, head("GET", "/internal/jobs/a/blobs/1/x", download))
            for job in ("a", "b"):  # Workers retry after a 503, but not after a lower status.
                assert b" 503 " in await ask(address, upload(job))
            assert (await client.user("GET", "/jobs")).is_success
            await node.beat()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "limits", [{"anonymous": GroupLimit(5, 50)}, {"connections": 6}], ids=["of one address", "in all"]
)
async def test_silent_anonymous_connections_block_nobody(
    limits: dict[str, Any], scheme: str, secure: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = secure if scheme == "https" else None

    async with limited(tmp_path, monkeypatch, replace(PATIENT, **limits), tls) as (client, address):
        assert (await client.user("GET", "/jobs")).is_success
        # Some of these are closed before their handshake starts, because all are accepted immediately.
        with held(address, *[b""] * 20) as opened:
            for token in (TOKEN, NODE_TOKEN):
                assert b"HTTP/1.1 " in await ask(address, head("GET", "/jobs", token, Connection="close"), tls)
            # This connection is authenticated, so it is not evicted.
            assert (await client.user("GET", "/jobs")).is_success
            assert connection_table(client).total <= 6
            opened[0].settimeout(5)
            with suppress(ConnectionError):
                assert opened[0].recv(100) == b"", "the oldest makes room"
        await until_held(client, Group.ANONYMOUS, 0)


@pytest.mark.slow
async def test_connections_with_a_token_are_bounded_in_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path, monkeypatch, replace(PATIENT, connections=4)) as (client, address):
        beat = half(NODE_TOKEN, "/internal/nodes/x/heartbeat")
        assert (await client.user("GET", "/jobs")).is_success
        with held(address, beat, beat, beat):
            await until_held(client, Group.NODES, 3)
            assert b" 503 " in await ask(address, b"")


async def test_a_crowded_anonymous_connection_has_less_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path, monkeypatch, replace(PATIENT, anonymous=GroupLimit(4, 9), crowded_head_s=0.2)) as (
        client,
        address,
    ):
        with held(address, b""):
            await until_held(client, Group.ANONYMOUS, 1)
            assert b"not complete within 0.2 s" in await ask(address, b"GET /")


@pytest.mark.slow
async def test_a_users_body_has_an_end_and_a_nodes_may_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(address: Address, begin: bytes, until_s: float) -> bytes:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begin)
        answered, end = asyncio.ensure_future(reader.read(65536)), loop.time() + until_s
        while not answered.done() and loop.time() < end:
            writer.write(b" " * 1000)
            await asyncio.wait({answered}, timeout=0.05)
        answered.cancel()
        writer.close()
        return answered.result() if answered.done() and not answered.cancelled() else b""

    limits = replace(PATIENT, body_window_s=0.2, body_bytes=500, user_body_s=0.4)
    async with limited(tmp_path, monkeypatch, limits) as (_, address):
        user, node = await asyncio.gather(
            drip(address, half(TOKEN), 5), drip(address, half(NODE_TOKEN, "/internal/nodes/x/heartbeat"), 1)
        )
        assert b" 408 " in user
        assert b"body was not complete within 0.4 s" in user
        assert node == b""
