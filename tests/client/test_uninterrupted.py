"""Ctrl-C at the worst moments of a request. The client can be used again, as a command or a notebook does."""

import gc
import signal
import threading
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from httpcore._synchronization import ThreadLock

from rolecall.client.uninterrupted import open_stream, uninterrupted

pytestmark = pytest.mark.timeout(60)


@dataclass
class Served:
    """A client with a single connection. Its server answers `/`, and `/interrupted` only after Ctrl-C and `go_on`."""

    client: httpx.Client
    go_on: threading.Event

    def get(self, path: str = "/") -> str:
        return uninterrupted(lambda: self.client.get(path)).text


@pytest.fixture
def served() -> Generator[Served]:
    go_on = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/interrupted":
                _press_ctrl_c()
                go_on.wait()
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # The client has closed the connection.

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url, one = f"http://127.0.0.1:{server.server_port}", httpx.Limits(max_connections=1)
        with httpx.Client(base_url=url, limits=one, timeout=30) as client:
            yield Served(client, go_on)
            go_on.set()
        server.shutdown()


def _press_ctrl_c() -> None:
    """Interrupt the main thread. A terminal's signal goes to the process, whose main thread gets it if it can."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def _interrupt_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose first call gets Ctrl-C when it returns."""
    pending = [_press_ctrl_c]

    def interrupted(*args: Any) -> Any:
        result = function(*args)
        if pending:
            pending.pop()()
        return result

    return interrupted


def test_a_lock_that_was_just_taken_is_released(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadLock, "__enter__", _interrupt_once(ThreadLock.__enter__))
    with pytest.raises(KeyboardInterrupt):
        served.get()
    assert served.get() == "ok"


def test_a_wait_for_an_answer_ends_at_once_and_the_call_goes_on(served: Served) -> None:
    with pytest.raises(KeyboardInterrupt):
        served.get("/interrupted")
    served.go_on.set()
    assert served.get() == "ok", "the only connection is free again"


def test_a_stream_that_nobody_waits_for_is_closed(served: Served) -> None:
    request = served.client.build_request("GET", "/interrupted")
    with pytest.raises(KeyboardInterrupt):
        open_stream(lambda: served.client.send(request, stream=True))
    served.go_on.set()
    assert served.get() == "ok", "the only connection is free again"


def test_a_stream_that_was_opened_while_ctrl_c_arrived_is_closed(served: Served) -> None:
    def send() -> httpx.Response:
        response = served.client.send(served.client.build_request("GET", "/"), stream=True)
        _press_ctrl_c()
        return response

    with pytest.raises(KeyboardInterrupt):
        open_stream(send)
    assert served.get() == "ok", "the only connection is free again"


def test_the_error_of_a_call_reaches_its_caller_and_refers_to_nothing() -> None:
    class Needed:
        """An object that the failed call used."""

    def fail(needed: Needed) -> None:
        raise httpx.ReadTimeout("none")

    def call() -> "weakref.ref[Needed]":
        needed = Needed()
        try:
            uninterrupted(lambda: fail(needed))
        except httpx.ReadTimeout:
            return weakref.ref(needed)
        pytest.fail("no error")

    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
