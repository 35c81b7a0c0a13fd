# pyright: standard
"""The client's reading of responses, also of those from servers that differ from this version's master."""

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpcore._synchronization import ThreadLock
from tests.cli.command import run_at
from tests.master.harness import ONE_TRAINER, TOKEN, on_master, one_trainer
from tests.trackers.documents import job as document_of

from rolecall.cli.follow import log_lines
from rolecall.client import Client, Refused, UnknownName, Unreachable
from rolecall.client import client as client_module
from rolecall.client.connection import Connection
from rolecall.spec.errors import PROBLEM_PREFIX, STANDBY
from rolecall.spec.job import JobDocument
from rolecall.spec.state import WorkerState

# None of these ends a line, but each does for `str.splitlines`, on which HTTP libraries are built.
STRANGE = [
    "a\x0cb",
    "\x0cevent: end",
    "c\u2028event: end\u2029\u2028data: x",
    "d\x0b\x1c\x1d\x1e\x85e",
    "event: end",
    "",
]


@contextmanager
def answering(answer: Any, status: int = 200) -> Generator[Client]:
    """A client of a server that answers every request with `answer` as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PATCH = do_GET  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with Client(Connection(f"http://127.0.0.1:{server.server_port}", "token")) as client:
            yield client
        server.shutdown()


def test_a_client_can_be_used_after_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ThreadLock.__enter__` runs in another thread, so that the lock that it has taken is released again."""
    enter, pending = ThreadLock.__enter__, list[signal.Signals]()

    def interrupted(lock: ThreadLock) -> ThreadLock:
        enter(lock)
        if pending:
            signal.raise_signal(pending.pop())
        return lock

    monkeypatch.setattr(ThreadLock, "__enter__", interrupted)
    with answering({"status": "ok"}) as client:
        for call in (client.healthz, lambda: list(client.log("a", {}))):
            pending.append(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                call()
            assert client.healthz().status == "ok"


def test_unknown_fields_of_a_newer_master_are_ignored() -> None:
    with answering({"status": "ok", "since": "yesterday"}) as client:
        assert client.healthz().status == "ok"


def test_a_master_that_can_t_answer_yet_gets_another_try() -> None:
    standby = {"type": PROBLEM_PREFIX + STANDBY, "detail": "standing by for another master"}
    for answer in (standby, {"detail": "standing by for another master"}):
        with (
            answering(answer, status=503) as client,
            pytest.raises(
                Unreachable, match=r"^standing by for another master; if the master at .* is starting, try again"
            ),
        ):
            client.nodes()


def test_a_master_that_leads_names_its_own_remedy() -> None:
    problem = {"type": f"{PROBLEM_PREFIX}check-timeout", "detail": "the check took too long; send fewer values"}
    with answering(problem, status=503) as client, pytest.raises(Unreachable) as caught:
        client.nodes()
    assert str(caught.value) == "the check took too long; send fewer values"


def test_an_empty_value_is_shown() -> None:
    problem = {"field": "name", "message": "must be text, of at least 1 character", "given": '""'}
    with answering({"detail": "", "errors": [problem]}, status=422) as client, pytest.raises(Refused) as caught:
        client.nodes()
    assert str(caught.value).endswith('must be text, of at least 1 character (given: "")')


@pytest.mark.slow
@pytest.mark.parametrize("answer", [{"ok": True}, {"nodes": [{"name": "x"}]}, [], {"nodes": None}])
def test_an_unreadable_response_is_a_one_line_error(answer: Any) -> None:
    with (
        answering(answer) as client,
        pytest.raises(Unreachable, match=r"can't read: .* and of this version") as caught,
    ):
        client.nodes()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "request_it",
    [
        lambda client, job: client.job(job),
        lambda client, job: client.act(job, "cancel"),
        lambda client, job: client.update(job, {"priority": 1}),
    ],
)
def test_the_document_of_another_job_is_refused(request_it: Callable[[Client, str], JobDocument]) -> None:
    with answering(document_of("../else\n").model_dump(mode="json")) as client:
        with pytest.raises(Unreachable, match=r"answers with the job '\.\./else\\n' instead of 'rnn-lm-1'; "):
            request_it(client, "rnn-lm-1")
        with pytest.raises(UnknownName, match=r"else\\n' does not exist"):
            request_it(client, "../else\n")
    with answering(document_of("rnn-lm-1").model_dump(mode="json")) as client:
        assert request_it(client, "rnn-lm-1").id == "rnn-lm-1"


def test_a_comment_in_a_stream_is_not_an_event() -> None:
    stream = b"id: 7\ndata: one\n\n: nothing new\n\nevent: end\ndata: over\n\n"
    answer = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=stream)
    assert [event.data for event in client_module._sent(answer)] == ["one", "over"]  # pyright: ignore[reportPrivateUsage]


async def test_no_character_of_a_line_ends_it_or_the_stream(tmp_path: Path) -> None:
    seen = asyncio.Queue[str]()
    loop = asyncio.get_running_loop()

    def follow(url: str, job: str) -> None:
        with Client(Connection(url, TOKEN)) as client:
            for line in log_lines(client, job, {}):
                loop.call_soon_threadsafe(seen.put_nowait, line)

    async with on_master(tmp_path) as master, asyncio.timeout(20):
        node, job = await one_trainer(master), (await master.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        lines = [f"[trainer-0] {line}" for line in STRANGE]
        body = "".join(f"{line}\n" for line in STRANGE).encode()
        await node.ship(worker, "log", body)
        following = asyncio.create_task(asyncio.to_thread(follow, str(master.http.base_url), job))
        assert [await seen.get() for _ in lines] == lines
        await node.ship(worker, "log", body, offset=len(body))
        assert [await seen.get() for _ in lines] == lines
        await node.say(worker, WorkerState.SUCCEEDED, exit_code=0, log_bytes=2 * len(body))
        await following
        assert seen.empty()
        assert json.loads((await run_at(master, "logs", job, "--json")).out) == 2 * lines
