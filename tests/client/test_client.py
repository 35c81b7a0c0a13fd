"""The client with servers whose responses differ from those of this version's master."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from rolecall.client import Client, Unreachable
from rolecall.client import client as client_module
from rolecall.client.connection import Connection


@contextmanager
def answering(answer: Any) -> Iterator[Client]:
    """A client of a server that answers every GET with `answer` as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Client(Connection(f"http://127.0.0.1:{server.server_port}", "token")) as client:
            yield client
        server.shutdown()


def test_unknown_fields_of_a_newer_master_are_ignored() -> None:
    with answering({"status": "ok", "since": "yesterday"}) as client:
        assert client.healthz().status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("answer", [{"ok": True}, {"nodes": [{"name": "x"}]}, [], {"nodes": None}])
def test_an_unreadable_response_is_a_one_line_error(answer: Any) -> None:
    with (
        answering(answer) as client,
        pytest.raises(Unreachable, match=r"can't read: .* and of this version") as caught,
    ):
        client.nodes()
    assert "\n" not in str(caught.value)


def test_a_comment_in_a_stream_is_not_an_event() -> None:
    stream = b"id: 7\ndata: one\n\n: nothing new\n\nevent: end\ndata: over\n\n"
    answer = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=stream)
    assert [event.data for event in client_module._sent(answer)] == ["one", "over"]  # pyright: ignore[reportPrivateUsage]
