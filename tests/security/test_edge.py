"""Limits for clients that have no token, are slow, or open too many connections."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from tests.master.harness import (
    NO_AUTHORITIES,
    NODE_TOKEN,
    TOKEN,
    Client,
    make_settings,
    one_trainer,
    serving,
    signing_key,
)
from tests.master.test_server import program
from tests.security.certificates import make_ca, sign

from rolecall.edge.connection_table import ConnectionLimits
from rolecall.master import server
from rolecall.spec.token import attempt_token

MIB = 1 << 20
BODY = 14 * MIB
Tls = tuple[dict[str, Path], ssl.SSLContext]
QUICK = ConnectionLimits(head_s=0.3, body_window_s=0.3, stall_s=0.5)


class Program(NamedTuple):
    """A master."""

    process: psutil.Process
    url: str
    signing_key: str


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A master in a separate process, so that its memory can be measured."""
    data = tmp_path_factory.mktemp("master")
    with program(data) as (process, url):
        httpx.get(f"{url}/healthz").raise_for_status()
        yield Program(psutil.Process(process.pid), url, signing_key(data))


def connection_table(client: object) -> Any:
    """The master's table of open connections."""
    return client.server.config.http_protocol_class.table  # type: ignore[attr-defined]


def dial(url: str) -> socket.socket:
    """A raw connection to the master at `url`."""
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)


def head(method: str, path: str, token: str | None = None, **headers: str) -> bytes:
    """The head of a request."""
    given = {"Host": "master", **({"Authorization": f"Bearer {token}"} if token else {}), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """The whole answer on a connection that the server closes."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    top, _, body = received.partition(b"\r\n\r\n")
    first, *rest = top.decode().split("\r\n")
    return int(first.split()[1]), {line.split(": ")[0].lower(): line.split(": ")[1] for line in rest}, body


OTHER_ATTEMPT = 2
"""Represents the token of that attempt of `toy-1`."""
UPLOAD = "/internal/jobs/toy-1/attempts/1/blobs/part"
BEAT = "/internal/nodes/x/heartbeat"


@pytest.mark.parametrize(
    ("method", "path", "token"),
    [
        ("POST", "/jobs", None),
        ("POST", "/jobs", NODE_TOKEN),
        ("POST", BEAT, None),
        ("POST", BEAT, TOKEN),
        ("POST", BEAT, 1),
        ("PUT", UPLOAD, OTHER_ATTEMPT),
        ("GET", "/internal/jobs/other/blobs/1/x", 1),
        ("GET", "/internal/jobs/toy-1/blobs/1/x", f"1.{'0' * 64}"),
        ("POST", "/internal/jobs/toy-1/attempts/1/checkpoints", OTHER_ATTEMPT),
        ("POST", "/internal/no/such/route", None),
        ("POST", "/no/such/route", None),
        ("POST", "//jobs", None),
        ("POST", "/docs", None),
    ],
)
def test_a_request_without_its_token_is_answered_before_its_body(
    method: str, path: str, token: str | int | None, master: Program
) -> None:
    if isinstance(token, int):
        token = attempt_token(master.signing_key, "toy-1", token)
    with closing(dial(master.url)) as connection:
        connection.sendall(head(method, path, token, Content_Length=str(BODY), Content_Type="application/json"))
        status, headers, body = answer(connection)
    known = token in {TOKEN, NODE_TOKEN}
    assert (status, headers["connection"]) == (403 if known else 401, "close")
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["status"] == status
    assert known or "Bearer" in headers["www-authenticate"]


def test_a_body_without_a_token_costs_no_memory(master: Program) -> None:
    process, url, _ = master
    before = process.memory_info().rss
    body = b'{"workers": [' + b"[1," * (BODY // 6)
    most = before
    for path in (BEAT, "/jobs", UPLOAD):
        with closing(dial(url)) as connection:
            connection.sendall(head("POST", path, Content_Length=str(BODY), Content_Type="application/json"))
            with suppress(ConnectionError, TimeoutError):  # The server closes the connection, as expected.
                connection.sendall(body)
            most = max(most, process.memory_info().rss)
    assert most - before < 20 * MIB
    assert httpx.get(f"{url}/healthz").is_success


@pytest.mark.parametrize(
    "request_of_parts",
    [
        head("GET", "/jobs")[:-2] + b"X: a\r\n" * 19_000 + b"\r\n",
        head("POST", "/jobs", Transfer_Encoding="chunked", Content_Type="application/json") + b"1\r\na\r\n" * 20_000,
        head("POST", "/jobs", Transfer_Encoding="chunked") + b"0\r\n" + b"X: a\r\n" * 19_000 + b"\r\n",
    ],
    ids=["lines", "chunks", "trailer"],
)
def test_many_tiny_parts_without_a_token_cost_little_time(request_of_parts: bytes, master: Program) -> None:
    """They are parsed before the token is checked, and while nothing else runs."""
    begin = master.process.cpu_times()
    for _ in range(10):
        with closing(dial(master.url)) as connection, suppress(ConnectionError, TimeoutError):
            connection.sendall(request_of_parts)
            assert answer(connection)[0] in {400, 401}
    end = master.process.cpu_times()
    assert end.user + end.system - begin.user - begin.system < 0.5
    assert httpx.get(f"{master.url}/healthz").is_success


def test_who_waits_for_100_continue_is_refused_without_it(master: Program) -> None:
    with closing(dial(master.url)) as connection:
        connection.sendall(head("POST", "/jobs", Content_Length=str(BODY), Expect="100-continue"))
        assert answer(connection)[0] == 401


async def test_the_tokens_of_nodes_attempts_and_browsers_pass(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        await node.beat()
        # These requests reach the routes, for which no such job exists.
        assert (await client.worker("PUT", "toy-1", 1, "/attempts/1/blobs/a")).status_code == 404
        assert (await client.worker("GET", "toy-1", 3, "/blobs/1/a")).status_code == 404
        assert (await client.http.get("/docs", auth=("me", TOKEN))).is_success
        assert (await client.http.get("/jobs", auth=("me", TOKEN))).status_code == 401
        assert (await client.http.get("/healthz")).is_success


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A master's certificate, and what a client verifies it with."""
    ca = make_ca(tmp_path_factory.mktemp("ca"))
    pair = sign(ca)
    values = {"tls_cert": pair.certificate, "tls_key": pair.key}
    return values, ssl.create_default_context(cafile=str(ca.certificate))


@asynccontextmanager
async def limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: ConnectionLimits, secure: Tls | None = None
) -> AsyncGenerator[tuple[Client, tuple[str, int]]]:
    """A master with these limits and its address, with HTTPS if it is to be `secure`."""
    monkeypatch.setattr(server, "LIMITS", limits)
    values, verify = secure or ({}, NO_AUTHORITIES)
    async with serving(make_settings(tmp_path, **values), verify) as client:
        assert client.http.base_url.port is not None
        yield client, (client.http.base_url.host, client.http.base_url.port)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTT",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /hea",
        head("POST", "/jobs", TOKEN, Content_Length="1000") + b"{",
        head("POST", "/jobs", TOKEN, Transfer_Encoding="chunked") + b"1\r\n{\r\n",
    ],
    ids=["nothing", "half a head", "half a second head", "half a body", "half a chunked body"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_half_a_request_is_not_held(
    scheme: str, sent: bytes, secure: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = secure if scheme == "https" else None

    async with limited(tmp_path, monkeypatch, QUICK, tls) as (_, address):
        reader, writer = await asyncio.open_connection(*address, ssl=tls[1] if tls else None)
        writer.write(sent)
        received = await asyncio.wait_for(reader.read(), 5)
        assert b" 408 Request Timeout" in received
        assert b"problem+json" in received
        writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["nothing", "half a greeting"])
async def test_half_a_handshake_is_not_held(
    sent: bytes, secure: Tls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, QUICK, secure) as (client, address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        with suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert (await client.user("GET", "/jobs")).is_success
        # Its slot is free again.
        assert connection_table(client).total == 1


async def test_a_head_or_body_that_drips_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drip(address: tuple[str, int], begin: bytes) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begin)
        closed = asyncio.ensure_future(reader.read())
        while not closed.done():
            writer.write(b"a")
            await asyncio.wait({closed}, timeout=0.02)
        # A byte that arrives after the close resets the connection, possibly before the answer is read.
        assert closed.exception() is not None or b" 408 " in closed.result()
        writer.close()

    async with limited(tmp_path, monkeypatch, QUICK) as (_, address):
        async with asyncio.timeout(5):
            await asyncio.gather(
                drip(address, b"GET /"), drip(address, head("POST", "/jobs", TOKEN, Content_Length="100000"))
            )


@pytest.mark.slow
async def test_long_polls_and_busy_uploads_outlive_the_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with limited(tmp_path, monkeypatch, QUICK) as (client, _):
        node = await one_trainer(client)
        await node.beat(4 * QUICK.head_s)

        async def slowly() -> object:
            for _ in range(10):
                yield b"x" * 50_000
                await asyncio.sleep(QUICK.body_window_s / 3)

        upload = await client.internal("PUT", "/jobs/toy-1/attempts/1/ranks/0/streams/log?offset=0", content=slowly())
        assert upload.status_code == 404, upload.text


@pytest.mark.slow
async def test_an_answer_that_nobody_reads_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path, monkeypatch, QUICK) as (client, address):
        held: Any = client.server.server_state.connections
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(address)
            deaf.sendall(500 * head("GET", "/openapi.json", TOKEN))
            own = deaf.getsockname()
            async with asyncio.timeout(20):
                for there in (True, False):
                    while any(one.client == own for one in held) != there:
                        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_an_answer_that_is_read_slowly_is_not_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with limited(tmp_path, monkeypatch, QUICK) as (client, address):
        loop = asyncio.get_running_loop()
        held: Any = client.server.server_state.connections
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            await loop.sock_connect(slow, address)
            await loop.sock_sendall(slow, 500 * head("GET", "/openapi.json", TOKEN))
            async with asyncio.timeout(20):
                while not any(one.flow.write_paused for one in held):
                    await asyncio.sleep(0.01)
            until = loop.time() + 3 * QUICK.stall_s
            while loop.time() < until:
                assert await asyncio.wait_for(loop.sock_recv(slow, 4096), 5)
                await asyncio.sleep(QUICK.stall_s / 10)
                assert any(one.client == slow.getsockname() for one in held)
