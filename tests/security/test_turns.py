# pyright: standard
"""A user who calls a lot delays their own calls, not those of others."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.master.harness import make_token
from tests.security.test_crowd import PATIENT, ask, half, held
from tests.security.test_edge import head, limited

from rolecall.master.access import Principal
from rolecall.master.api import turns
from rolecall.master.api.turns import AT_ONCE, DOWNLOADS, UPLOADS, CallTurns
from rolecall.spec.access import Scope as Scopes

LARGE = {"content-length": str(turns.LARGE_BYTES + 1)}


class App:
    """An application whose calls last until the test ends them."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.end = asyncio.Event()
        self.calls = CallTurns(self._serve)
        self.tasks: list[asyncio.Task[list[Message]]] = []

    async def _serve(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.running.append(scope["token"])
        await self.end.wait()
        self.running.remove(scope["token"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    def call(
        self, token: str, path: str = "/jobs", method: str = "POST", **headers: str
    ) -> asyncio.Task[list[Message]]:
        """Begin a call; the result is its response."""
        self.tasks.append(asyncio.create_task(self._call(token, path, method, headers)))
        return self.tasks[-1]

    async def _call(self, token: str, path: str, method: str, headers: dict[str, str]) -> list[Message]:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            sent.append(message)

        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope: Scope = {"type": "http", "method": method, "path": path, "headers": raw, "token": token}
        await self.calls(scope, receive, send)
        return sent

    async def settled(self) -> list[str]:
        """The tokens of the calls in progress, when each call has begun or waits."""
        for _ in range(10):
            await asyncio.sleep(0)
        return sorted(self.running)


@pytest.fixture(autouse=True)
def tokens(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every call of `App` has the token that its scope names."""
    if "tmp_path" in request.fixturenames:
        yield
        return

    def admission_of(scope: Scope) -> SimpleNamespace:
        if scope["token"].startswith("toy-"):
            return SimpleNamespace(caller=None, job=scope["token"])
        if scope["token"] == "node":
            return SimpleNamespace(caller=Principal("node", frozenset({Scopes.NODE})), job="")
        own = Scopes.ADMIN if scope["token"] == "admin" else Scopes.SUBMIT
        return SimpleNamespace(caller=Principal(scope["token"], frozenset({own})), job="")

    monkeypatch.setattr(turns, "admission_of", admission_of)
    # The owner of `toy-1` has `toy-1-b`, too.
    monkeypatch.setattr(turns, "_owner", lambda _scope, job: job.removesuffix("-b"))
    yield


async def test_a_token_has_few_calls_in_progress_and_others_have_their_own() -> None:
    app = App()
    for _ in range(20):
        app.call("greedy")
    app.call("other")
    assert await app.settled() == ["greedy"] * AT_ONCE + ["other"]
    app.end.set()
    answers = await asyncio.gather(*app.tasks)
    assert [answer[0]["status"] for answer in answers] == [200] * 21


async def test_nodes_and_admins_do_not_wait() -> None:
    app = App()
    for _ in range(2 * AT_ONCE):
        app.call("admin")
        app.call("node", "/internal/nodes/n")
    assert len(await app.settled()) == 4 * AT_ONCE
    app.end.set()
    await asyncio.gather(*app.tasks)


async def test_pages_and_the_calls_that_they_make_do_not_wait_for_each_other() -> None:
    app = App()
    for _ in range(2 * AT_ONCE):
        app.call("greedy", "/ui/jobs/1")
        app.call("greedy", "/jobs/1")
    assert len(await app.settled()) == 2 * AT_ONCE
    app.end.set()
    await asyncio.gather(*app.tasks)


async def test_followed_logs_without_lines_leave_turns_to_other_calls() -> None:
    begun = 0

    async def follow(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Future()

    async def send(_message: Message) -> None: ...

    app = App()
    app.calls = CallTurns(follow)
    scope: Scope = {"type": "http", "method": "GET", "path": "/jobs/1/logs", "headers": [], "token": "alice"}
    calls = [asyncio.create_task(app.calls(scope, asyncio.Future, send)) for _ in range(2 * AT_ONCE)]
    await app.settled()
    assert begun == 2 * AT_ONCE
    for call in calls:
        call.cancel()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_token_has_few_responses_that_it_does_not_read(streams: bool) -> None:
    """Each occupies memory, unless it is a stream, of which the master holds one part."""
    reads, sent = asyncio.Event(), bytearray()
    begun = 0

    async def respond(_scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        headers = [(b"content-length", b"%d" % (200_000 + streams))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"a" * 200_000, "more_body": streams})
        if streams:
            await send({"type": "http.response.body", "body": b"b", "more_body": False})

    async def buffer(message: Message) -> None:
        """As uvicorn does: the next part waits until the client has read most of those before."""
        if sent and not message.get("status"):
            await reads.wait()
        sent.extend(message.get("body", b""))

    app = App()
    app.calls = CallTurns(respond)
    scope: Scope = {"type": "http", "method": "GET", "path": "/jobs", "headers": [], "token": "greedy"}
    calls = [asyncio.create_task(app.calls(scope, asyncio.Future, buffer)) for _ in range(3 * AT_ONCE)]
    await app.settled()
    assert begun == (3 if streams else 1) * AT_ONCE
    assert len(sent) < (200_000 * 2)
    reads.set()
    await asyncio.gather(*calls)
    assert len(sent) == 3 * AT_ONCE * (200_000 + streams)


async def test_the_workers_of_an_owners_jobs_share_turns() -> None:
    app = App()
    for job in ("toy-1", "toy-1-b"):
        for _ in range(20):
            app.call(job, f"/internal/jobs/{job}/attempts/1/checkpoints")
    for _ in range(2):
        app.call("toy-3", "/internal/jobs/toy-3/attempts/1/checkpoints", **LARGE)
    assert await app.settled() == ["toy-1"] * AT_ONCE + ["toy-3"]
    app.end.set()
    await asyncio.gather(*app.tasks)


@pytest.mark.parametrize(("method", "most"), [("GET", DOWNLOADS), ("PUT", UPLOADS)])
async def test_the_workers_of_an_owners_jobs_have_few_files_in_progress(method: str, most: int) -> None:
    app = App()
    for _ in range(2 * UPLOADS):
        for job in ("toy-1", "toy-1-b"):
            app.call(job, f"/internal/jobs/{job}/attempts/1/blobs/part", method, **LARGE)
    app.call("toy-2", "/internal/jobs/toy-2/attempts/1/blobs/part", method, **LARGE)
    app.call("toy-1", "/internal/jobs/toy-1/attempts/1/checkpoints")
    assert len(await app.settled()) == most + 2, "uploads, downloads and records don't wait for each other"
    app.end.set()
    answers = await asyncio.gather(*app.tasks)
    assert {answer[0]["status"] for answer in answers} == {200}


async def test_a_long_upload_gives_its_turn_to_others_and_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LONG_S", 0.01)
    app = App()
    for _ in range(3 * UPLOADS):
        app.call("toy-1", "/internal/jobs/toy-1/attempts/1/blobs/part", "PUT", **LARGE)
    async with asyncio.timeout(5):
        while len(await app.settled()) < 3 * UPLOADS:
            await asyncio.sleep(0.01)
    app.end.set()
    await asyncio.gather(*app.tasks)
    monkeypatch.setattr(turns, "_LONG_S", 3600.0)
    app.end.clear()
    for _ in range(3 * UPLOADS):
        app.call("toy-1", "/internal/jobs/toy-1/attempts/1/blobs/part", "PUT", **LARGE)
    assert len(await app.settled()) == UPLOADS, "each turn was returned once"
    app.end.set()
    await asyncio.gather(*app.tasks)


@pytest.mark.parametrize(
    ("slow", "other"),
    [("/jobs/1/stacks", "/jobs"), ("/ui/jobs/1/picture", "/ui/jobs"), ("/ui/jobs/1/picture", "/jobs")],
)
async def test_calls_that_wait_for_workers_leave_turns_to_other_calls(slow: str, other: str) -> None:
    app = App()
    for _ in range(2 * AT_ONCE):
        app.call("greedy", slow)
    app.call("greedy", other)
    assert len(await app.settled()) == AT_ONCE + 1
    app.end.set()
    await asyncio.gather(*app.tasks)


@pytest.mark.parametrize("headers", [LARGE, {"transfer-encoding": "chunked"}])
async def test_a_token_has_one_large_body_in_progress_and_rests_after_it(
    headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_MAX_REST_S", 3600.0)
    monkeypatch.setattr(turns, "_REST", 1e9)
    app = App()
    first, second = app.call("greedy", **headers), app.call("greedy", **headers)
    app.call("other", **headers)
    assert await app.settled() == ["greedy", "other"]
    app.end.set()
    assert (await first)[0]["status"] == 200
    await app.settled()
    assert not second.done(), "the token rests"
    second.cancel()


async def test_a_call_that_waits_too_long_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_WAIT_S", 0.01)
    monkeypatch.setattr(turns, "_MOST_WAITING", 3)
    app = App()
    begun = [app.call("greedy") for _ in range(AT_ONCE)]
    late = [app.call("greedy") for _ in range(4)]
    await app.settled()
    assert [one.done() for one in late] == [False, False, False, True], "no more wait than a token has connections"
    answers = await asyncio.gather(*late)
    assert {answer[0]["status"] for answer in answers} == {429}
    app.end.set()
    assert [answer[0]["status"] for answer in await asyncio.gather(*begun)] == [200] * AT_ONCE


async def test_the_master_reads_one_large_body_of_a_token_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "_WAIT_S", 0.3)
    async with limited(tmp_path, monkeypatch, PATIENT) as (client, address):
        greedy, other = [await make_token(client, name, Scopes.SUBMIT) for name in ("greedy", "other")]
        body = b'{"name": [' + b"[]," * turns.LARGE_BYTES + b"[]]}"
        headers = {"Content_Length": str(len(body)), "Content_Type": "application/json", "Connection": "close"}
        with held(address, half(greedy)):
            refused = await ask(address, half(greedy))
            assert b" 429 " in refused
            assert b"or one with a large body; try again later" in refused
            assert b" 422 " in await ask(address, head("POST", "/jobs", other, **headers) + body)
            assert b" 200 " in await ask(address, head("GET", "/jobs", greedy, Connection="close"))
