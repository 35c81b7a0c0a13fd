"""The requests that pass the gate, and those that wait. Floods are in tests/security, sessions in `test_web`."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Call
from tests.master.harness import NODE_TOKEN, TOKEN, Client, bearer, make_token, on_master
from tests.security.test_shares import occupy

from rolecall.master.api import gate
from rolecall.spec.access import Scope


class Held:
    """An application whose calls last until the test ends them, behind a gate."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.end = asyncio.Event()
        self._gate = gate.Gate(self._serve)

    async def _serve(self, scope: Call, _receive: Receive, send: Send) -> None:
        self.begun.append(scope["path"])
        await self.end.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def call(self, path: str) -> None:
        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(_: Message) -> None:
            pass

        scope: Any = {"type": "http", "method": "GET", "path": path, "headers": [], "client": ("proxy", 1)}
        await self._gate(scope, receive, send)


async def test_health_checks_do_not_wait_for_other_calls_without_a_token() -> None:
    """Behind a proxy, all have its address."""
    app = Held()
    calls = [asyncio.create_task(app.call(path)) for path in ("/ui/login", "/ui/login", "/healthz", "/healthz")]
    for _ in range(10):
        await asyncio.sleep(0)
    assert app.begun == ["/ui/login", "/healthz"]
    app.end.set()
    await asyncio.gather(*calls)
    assert len(app.begun) == 4


@pytest.mark.parametrize("path", ["/readyz", "/metrics"])
async def test_what_shows_whether_the_master_works_leaves_users_their_share(tmp_path: Path, path: str) -> None:
    async with on_master(tmp_path) as client:
        released = asyncio.Event()
        calls = await occupy(client.master.database, released, 60)
        assert (await client.user("GET", path, timeout=5)).status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            await client.user("GET", "/nodes", timeout=0.3)
        released.set()
        await asyncio.gather(*calls)


async def test_a_refusal_says_what_the_call_needs_and_closes_the_connection(client: Client) -> None:
    several = await make_token(client, "several", Scope.READ, Scope.METRICS)
    for token, path, status, detail in (
        (NODE_TOKEN, "/jobs", 403, " the scope admin or metrics or read or submit; the token node has node"),
        (several, "/internal/nodes/x", 403, " the scope node; the token several has metrics and read"),
        (None, "/jobs", 401, " as a bearer token; none was given"),
        (None, "/docs", 401, " as a bearer token, or from a browser as the password; none was given"),
    ):
        refused = await client.call(token, "GET", path)
        assert (refused.status_code, refused.headers["connection"]) == (status, "close")
        assert refused.json()["detail"].endswith(detail)


async def test_a_call_that_follows_is_recognized(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "FOLLOWERS", 0)
    following = [f"follow={value}" for value in ("true", "1", "yes", "on", "anything")]
    reading = [f"follow={value}" for value in ("false", "0", "No", "OFF", "f", "n", "")]
    for path in ("/jobs/missing/logs", "/jobs/missing/events"):
        for query in (*following, "follow=0&follow=1"):
            assert (await client.user("GET", f"{path}?{query}")).status_code == 429, query
        for query in (*reading, "followed=1"):
            assert (await client.user("GET", f"{path}?{query}")).status_code != 429, query
    assert (await client.user("GET", "/jobs?follow=1")).status_code != 429


async def follows_again(http: httpx.AsyncClient, path: str, secret: str) -> bool:
    async with http.stream("GET", path, params={"follow": "1"}, headers=bearer(secret)) as again:
        return again.status_code == 200


async def test_followers_are_limited_for_each_token(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "FOLLOWERS", 3)
    job = (await client.submit())["id"]
    path, http = f"/jobs/{job}/logs", client.http
    secret = await make_token(client, "ci", Scope.READ)
    async with asyncio.timeout(10):
        following = [http.stream("GET", path, params={"follow": "true"}, headers=bearer(secret)) for _ in range(3)]
        for one in following:
            assert (await one.__aenter__()).status_code == 200
        refused = await http.get(path, params={"follow": "1"}, headers=bearer(secret))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        # Another secret of the same token shares its limit, but another token has its own.
        rotated = await client.user("POST", "/tokens/ci/rotate", json={"overlap_s": 60})
        fresh = bearer(rotated.json()["secret"])
        assert (await http.get(path, params={"follow": "1"}, headers=fresh)).status_code == 429
        async with http.stream("GET", path, params={"follow": "1"}, headers=bearer(TOKEN)) as other:
            assert other.is_success
        assert (await http.get(path, params={"follow": "false"}, headers=bearer(TOKEN))).is_success
        await following.pop().__aexit__(None, None, None)
        while not await follows_again(http, path, secret):
            await asyncio.sleep(0.01)
        for one in following:
            await one.__aexit__(None, None, None)


def test_many_logs_may_be_followed() -> None:
    assert gate.FOLLOWERS >= 200
