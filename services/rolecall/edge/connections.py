"""Limits on connections: how long half a request may take, and how many connections there may be.

uvicorn bounds the size of a head but not the time it takes. How many connections each may hold, `edge.census` decides.
A connection counts from the moment it is accepted: with TLS, the handshake is part of its time as a stranger.
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

from rolecall.edge.census import Census, Excess, Group, Holder, Limits

_CLAIM = "rolecall.claim"
_OTHER_FILES = 1024


def limited(limits: Limits, tls: ssl.SSLContext | None = None) -> type[H11Protocol]:
    """The protocol of a server that keeps to `limits`, for `uvicorn.Config(http=…)`. One server, one protocol.

    With `tls` it speaks HTTPS on connections that uvicorn takes for plain ones. Were uvicorn to listen with `tls`, the
    protocol would know nothing of a connection before its handshake has ended.
    """
    return type("LimitedProtocol", (_LimitedProtocol,), {"limits": limits, "census": Census(limits), "tls": tls})


def allow_files(limits: Limits) -> None:
    """Let this process open as many files as its connections need, and some more, as far as the system lets it."""
    wanted = limits.connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def claim(scope: Scope, group: Group, name: str) -> Excess | None:
    """Count the request's connection as that of `name`, who has shown a valid token; or say why there is no room."""
    claiming = cast(Callable[[Holder], Excess | None] | None, scope.get("extensions", {}).get(_CLAIM))
    return claiming(Holder(group, name)) if claiming is not None else None


class _LimitedProtocol(H11Protocol):
    limits: Limits
    census: Census
    tls: ssl.SSLContext | None

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.app = cast(Any, self._introduced(cast(ASGIApp, self.app)))
        self._accepted: asyncio.Transport | None = None
        self._early = b""
        self._handshake: asyncio.Task[None] | None = None
        self._waits_for: object = None
        self._received = 0
        self._body_until = 0.0
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it at once: nodes and workers try again."""
        self._accepted = transport
        address = get_remote_addr(transport)
        excess = self.census.admit(self, address[0] if address else "")
        if self.tls is None:
            self._begin(transport)
            if excess:
                problem = f"the server is overloaded: {excess}; try again"
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, problem)
        elif excess:
            transport.abort()  # An answer would cost the handshake, which is what a flood of connections is after.
        else:
            self._handshake = self.loop.create_task(self._secure(transport, self.tls))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give its place to others."""
        if self._has_begun:
            super().connection_lost(exc)
        for timer in (self._deadline, self._stalled):
            if timer is not None:
                timer.cancel()
        self.census.leave(self)
        self._accepted = None

    def evict(self) -> None:
        """Make room for a newcomer: without an answer, which might have to wait for its reader."""
        if self._accepted is not None:
            self._accepted.abort()

    def data_received(self, data: bytes) -> None:
        """Take in what came, unless the connection is refused."""
        if not self._has_begun:
            self._early += data  # Python 3.11 hands over what came with the handshake before `start_tls` returns.
            return
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Look for the next request, or for the end of the answer that was the last one."""
        super().on_response_complete()
        self._watch()
        if self.transport.is_closing():
            self._await_reading()

    def timeout_keep_alive_handler(self) -> None:
        """Close; what the peer has not read yet, it must read now."""
        super().timeout_keep_alive_handler()
        self._await_reading()

    def pause_writing(self) -> None:
        """The peer reads more slowly than is written: from now on it must read something."""
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        """The peer has read."""
        super().resume_writing()
        if self._stalled is not None and not self.transport.is_closing():
            self._stalled.cancel()

    @property
    def _has_begun(self) -> bool:
        """Whether there is a connection for HTTP: with TLS, after the handshake."""
        return cast(object, self.transport) is not None

    def _begin(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """Begin when the handshake has ended; a connection on which it fails is closed."""
        if transport.is_closing():
            return  # It has been evicted.
        try:
            secured = await self.loop.start_tls(
                transport,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=self._head_s(),
                ssl_shutdown_timeout=self.limits.head_s,
            )
        except OSError:  # It has failed, was not complete in time, or the peer has gone.
            secured = None
        if secured is None or self._accepted is None or transport.is_closing():
            transport.abort()
            self.census.leave(self)
            return
        self._begin(secured)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def _introduced(self, app: ASGIApp) -> ASGIApp:
        """`app`, which can claim this connection for whoever has shown a token on it."""

        def claimed(holder: Holder) -> Excess | None:
            return self.census.claim(self, holder)

        async def introduced(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**scope.get("extensions", {}), _CLAIM: claimed}
            await app(scope, receive, send)

        return introduced

    def _head_s(self) -> float:
        return self.limits.crowded_head_s if self.census.crowds(self) else self.limits.head_s

    def _watch(self) -> None:
        """Set the deadline of what the peer has to send now: the rest of a head or of a body, if anything."""
        waits_for = None if self.transport.is_closing() else self._due()
        if waits_for is self._waits_for:
            return
        self._waits_for = waits_for
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if waits_for is h11.IDLE:
            limit_s = self._head_s()
            self._deadline = self.loop.call_later(limit_s, self._on_slow_head, limit_s)
        elif waits_for is h11.SEND_BODY:
            self._body_until = self.loop.time() + self.limits.user_body_s
            self._await_body()

    def _due(self) -> object:
        """Which part of a request has begun to come: `h11.IDLE` is a head, `h11.SEND_BODY` a body."""
        state = self.conn.their_state
        first = cast(object, self.cycle) is None
        if state is h11.IDLE and (first or self.conn.trailing_data[0]):
            return state
        return state if state is h11.SEND_BODY else None

    def _await_body(self) -> None:
        self._received = 0
        self._deadline = self.loop.call_later(self.limits.body_window_s, self._on_body_window)

    def _on_slow_head(self, limit_s: float) -> None:
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request's head was not complete within {limit_s:g} s")

    def _on_body_window(self) -> None:
        limits = self.limits
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            # While the application takes its time, the peer is not to blame.
            self._body_until += limits.body_window_s
            self._await_body()
        elif self._received < limits.body_bytes:
            window = f"{limits.body_bytes} bytes within {limits.body_window_s:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"the request's body brought less than {window}")
        elif self._sends_small_bodies() and self.loop.time() >= self._body_until:
            problem = f"the request's body was not complete within {limits.user_body_s:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, problem)
        else:
            self._await_body()

    def _sends_small_bodies(self) -> bool:
        holder = self.census.holder(self)
        return holder is not None and holder.group in {Group.USERS, Group.ADMINS}

    def _await_reading(self) -> None:
        """Cut the peer off unless it reads something in each `stall_s`. Nothing more is written meanwhile."""
        if self._accepted is None:
            return  # It has gone.
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = self.loop.call_later(self.limits.stall_s, self._on_stall, self._unread())

    def _on_stall(self, before: int) -> None:
        if self._unread() < before:
            self._await_reading()
        elif self._accepted is not None:
            self._accepted.abort()

    def _unread(self) -> int:
        """How many bytes are written, but not received by the peer's kernel yet."""
        if self._accepted is None:
            return 0
        below = self._accepted.get_write_buffer_size() + _unacknowledged(self._accepted)
        # What TLS holds back; once it is closing, it no longer tells.
        layered = self.transport is not self._accepted and not self.transport.is_closing()
        return below + self.transport.get_write_buffer_size() if layered else below

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer, if no answer to this request has begun, and close."""
        if self.conn.their_state is h11.IDLE or not self.cycle.response_started:
            self.transport.write(_problem(status, detail))
        self.transport.close()
        self._await_reading()


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes in the kernel's send queue: the peer's window, and so its reading, decides how fast they go."""
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return 0  # It is closed.
    return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _problem(status: HTTPStatus, detail: str) -> bytes:
    """A whole answer: a problem document (RFC 9457)."""
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
