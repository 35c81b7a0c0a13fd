"""An HTTP protocol for uvicorn that limits the number of connections and the duration of incomplete requests.

uvicorn limits the size of a request's head, but not the time until it is complete. `edge.connection_table` limits the
number of connections. A connection counts from when it is accepted: during its TLS handshake it is anonymous.
"""

import asyncio
import fcntl
import json
import resource
import ssl
import sys
import termios
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr

from rolecall.edge.bounded_parser import BoundedConnection
from rolecall.edge.connection_table import ConnectionLimits, ConnectionTable, Group, LimitExceeded, Owner

_CLAIM = "rolecall.claim"
_OTHER_FILES = 1024
_MAX_INCOMPLETE_BYTES = 64 << 10
"""The largest incomplete head, as uvicorn's default."""


def limited_protocol(limits: ConnectionLimits, tls: ssl.SSLContext | None = None) -> type[H11Protocol]:
    """A protocol class with these limits, for `uvicorn.Config(http=…)`. Each server needs its own.

    With `tls`, the protocol itself does the TLS handshake. If uvicorn did it, the protocol would not see a connection
    until its handshake was complete, and could not limit handshakes.
    """
    attributes = {"limits": limits, "table": ConnectionTable(limits), "tls": tls}
    return type("LimitedProtocol", (_LimitedProtocol,), attributes)


def raise_open_file_limit(limits: ConnectionLimits) -> None:
    """Raise this process's soft limit for open files to what its connections need, as far as the hard limit allows."""
    wanted = limits.connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def claim(scope: Scope, group: Group, name: str) -> LimitExceeded | None:
    """Count the request's connection for the owner of its valid token, unless that exceeds a limit."""
    extension = cast(Callable[[Owner], LimitExceeded | None] | None, scope.get("extensions", {}).get(_CLAIM))
    return extension(Owner(group, name)) if extension is not None else None


class _LimitedProtocol(H11Protocol):
    limits: ConnectionLimits
    table: ConnectionTable
    tls: ssl.SSLContext | None

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.conn = BoundedConnection(self.config.h11_max_incomplete_event_size or _MAX_INCOMPLETE_BYTES)
        self.app = cast(Any, self._with_claim_extension(cast(ASGIApp, self.app)))
        self._socket_transport: asyncio.Transport | None = None
        self._early_data = b""
        self._handshake: asyncio.Task[None] | None = None
        self._expected_part: object = None
        self._window_bytes = 0
        self._body_deadline = 0.0
        self._receive_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection, or reject it immediately: nodes and workers retry."""
        self._socket_transport = transport
        address = get_remote_addr(transport)
        error = self.table.admit(self, address[0] if address else "")
        if self.tls is None:
            self._start_http(transport)
            if error:
                self._reject(HTTPStatus.SERVICE_UNAVAILABLE, f"the server is overloaded: {error}; try again")
        elif error:
            transport.abort()  # An answer would need a handshake, whose cost a flood of connections exploits.
        else:
            self._handshake = self.loop.create_task(self._start_tls(transport, self.tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the table, and stop its timers."""
        if self._is_http_started:
            super().connection_lost(exc)
        for timer in (self._receive_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self.table.remove(self)
        self._socket_transport = None

    def evict(self) -> None:
        """Close without an answer, because sending one could block on a peer that doesn't read."""
        if self._socket_transport is not None:
            self._socket_transport.abort()

    def data_received(self, data: bytes) -> None:
        """Process received data, unless the connection is being closed."""
        if not self._is_http_started:
            # Python 3.11 delivers data that arrived with the handshake before `start_tls` returns.
            self._early_data += data
            return
        if self.transport.is_closing():
            return
        self._window_bytes += len(data)
        super().data_received(data)
        self._update_receive_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, unless a response has already started, and close."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        if cast(object, self.cycle) is not None and not self.cycle.response_complete:
            # The application can't answer any more. Its attempt would raise an error, and each error is logged.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
        self._start_stall_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request or, after the last response, for the peer to read it."""
        super().on_response_complete()
        self._update_receive_timer()
        if self.transport.is_closing():
            self._start_stall_timer()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, and limit the time for the peer to read what is still buffered."""
        super().timeout_keep_alive_handler()
        self._start_stall_timer()

    def pause_writing(self) -> None:
        """Limit the time until the peer reads, because the write buffer is full."""
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        """Lift that limit, because the peer has read."""
        super().resume_writing()
        if self._stall_timer is not None and not self.transport.is_closing():
            self._stall_timer.cancel()

    @property
    def _is_http_started(self) -> bool:
        """True if the connection is ready for HTTP; with TLS, after the handshake."""
        return cast(object, self.transport) is not None

    def _start_http(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._update_receive_timer()

    async def _start_tls(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Do the handshake, then start HTTP; closes the connection if the handshake fails."""
        if transport.is_closing():
            return  # The connection has been evicted.
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._head_s(),
                ssl_shutdown_timeout=self.limits.head_s,
            )
        except OSError:  # The handshake failed or timed out, or the peer disconnected.
            secured = None
        if secured is None or self._socket_transport is None or transport.is_closing():
            transport.abort()
            self.table.remove(self)
            return
        self._start_http(secured)
        early, self._early_data = self._early_data, b""
        if early:
            self.data_received(early)

    def _with_claim_extension(self, app: ASGIApp) -> ASGIApp:
        """The application with an ASGI extension, by which `claim` finds the connection of a request."""

        def claim_connection(owner: Owner) -> LimitExceeded | None:
            return self.table.claim(self, owner)

        async def extended(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), _CLAIM: claim_connection}
            await app(scope, receive, send)

        return extended

    def _head_s(self) -> float:
        return self.limits.crowded_head_s if self.table.is_crowded(self) else self.limits.head_s

    def _update_receive_timer(self) -> None:
        """Start the timer for the part of a request that is incomplete now: its head, its body or neither."""
        expected = None if self.transport.is_closing() else self._incomplete_part()
        if expected is self._expected_part:
            return
        self._expected_part = expected
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = None
        if expected is h11.IDLE:
            limit_s = self._head_s()
            self._receive_timer = self.loop.call_later(limit_s, self._on_head_timeout, limit_s)
        elif expected is h11.SEND_BODY:
            self._body_deadline = self.loop.time() + self.limits.user_body_s
            self._start_body_window()

    def _incomplete_part(self) -> object:
        """The part of a request that has only partly arrived: `h11.IDLE` for a head, `h11.SEND_BODY` for a body."""
        state = self.conn.their_state
        first = cast(object, self.cycle) is None
        if state is h11.IDLE and (first or self.conn.trailing_data[0]):
            return state
        return state if state is h11.SEND_BODY else None

    def _start_body_window(self) -> None:
        self._window_bytes = 0
        self._receive_timer = self.loop.call_later(self.limits.body_window_s, self._on_body_window_end)

    def _on_head_timeout(self, limit_s: float) -> None:
        self._reject(HTTPStatus.REQUEST_TIMEOUT, f"the request's head was not complete within {limit_s:g} s")

    def _on_body_window_end(self) -> None:
        limits = self.limits
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            # The application has not read yet, so the peer can't send.
            self._body_deadline += limits.body_window_s
            self._start_body_window()
        elif self._window_bytes < limits.body_bytes:
            window = f"{limits.body_bytes} bytes within {limits.body_window_s:g} s"
            self._reject(HTTPStatus.REQUEST_TIMEOUT, f"the request's body was too slow: less than {window}")
        elif self._has_body_deadline() and self.loop.time() >= self._body_deadline:
            problem = f"the request's body was not complete within {limits.user_body_s:g} s"
            self._reject(HTTPStatus.REQUEST_TIMEOUT, problem)
        else:
            self._start_body_window()

    def _has_body_deadline(self) -> bool:
        owner = self.table.owner(self)
        return owner is not None and owner.group in {Group.USERS, Group.ADMINS}

    def _start_stall_timer(self) -> None:
        """Close the connection if the peer reads nothing for `stall_s`; call it only while nothing is written."""
        if self._socket_transport is None:
            return  # The peer has disconnected.
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._stall_timer = self.loop.call_later(self.limits.stall_s, self._on_stall, self._pending_bytes())

    def _on_stall(self, before: int) -> None:
        if self._pending_bytes() < before:
            self._start_stall_timer()
        elif self._socket_transport is not None:
            self._socket_transport.abort()

    def _pending_bytes(self) -> int:
        """The number of written bytes that the peer's kernel has not acknowledged."""
        if self._socket_transport is None:
            return 0
        pending = self._socket_transport.get_write_buffer_size() + _send_queue_bytes(self._socket_transport)
        # TLS has a buffer of its own, but doesn't report its size while it closes.
        has_tls_buffer = self.transport is not self._socket_transport and not self.transport.is_closing()
        return pending + self.transport.get_write_buffer_size() if has_tls_buffer else pending

    def _reject(self, status: HTTPStatus, detail: str) -> None:
        """Answer with an error, unless a response has already started, and close."""
        if self.conn.their_state is h11.IDLE or not self.cycle.response_started:
            self.transport.write(_problem_response(status, detail))
        self.transport.close()
        self._start_stall_timer()


def _send_queue_bytes(transport: asyncio.Transport) -> int:
    """The number of bytes in the kernel's send queue, which shrinks as the peer reads."""
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return 0  # The socket is closed.
    return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _problem_response(status: HTTPStatus, detail: str) -> bytes:
    """A complete HTTP response with a problem document (RFC 9457)."""
    body = json.dumps({"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}).encode()
    retry = ["Retry-After: 1"] if status is HTTPStatus.SERVICE_UNAVAILABLE else []
    lines = [
        f"HTTP/1.1 {int(status)} {status.phrase}",
        "Content-Type: application/problem+json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *retry,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
