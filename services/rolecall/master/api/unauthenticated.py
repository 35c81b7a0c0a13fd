"""Turns for callers without a token for their path: they are served one at a time, while the calls of others continue.

A refusal takes the event loop as long as an answer, so a client that repeats such calls on hundreds of connections
would keep the loop busy either way, and everyone's calls would wait for all of them in each pass of the loop. Instead,
the calls wait, which costs nothing. Addresses take turns, so that probes don't wait for a flood from elsewhere.
"""

import asyncio
from contextlib import ExitStack
from weakref import WeakValueDictionary

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.master.api.auth import address_of
from rolecall.master.api.waiting import Waiters, refuse, until_response

_REST = 3.0
"""The rest after a call, as a multiple of its duration: these calls take at most a quarter of the event loop's time."""
_MAX_REST_S = 0.05
_WAIT_S = 10.0
_MOST_WAITING = 256
"""As many as an address has connections. Clients that hang up leave their calls behind."""
_BODY_BYTES = 4096
"""The part of a body that must arrive before a turn. No open path reads a larger body."""
_BUSY = "this address has too many calls without a valid token in progress; try again later"


class UnauthenticatedTurns:
    """Serves the calls of unauthenticated clients in turn. Answers 429 to those that wait too long."""

    def __init__(self) -> None:
        self._by_address: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._all = asyncio.Semaphore(1)
        self._waiters = Waiters()

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Call `app` in a turn, which ends when its response starts."""
        address = address_of(scope)
        own = self._by_address.setdefault(address, asyncio.Semaphore(1))
        # At most one call of each address waits for the common turn.
        if not await self._waiters.acquire(address, own, self._all, most=_MOST_WAITING, wait_s=_WAIT_S):
            await refuse(_BUSY, scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        began = loop.time()

        def end() -> None:
            own.release()
            loop.call_later(min(_MAX_REST_S, _REST * (loop.time() - began)), self._all.release)

        with ExitStack() as turn:
            turn.callback(end)
            await until_response(app, scope, receive, send, turn.close)


async def received(receive: Receive) -> Receive | None:
    """Wait for the body of a call, or its first part, and replay it; None if the client hangs up.

    With it, a turn doesn't wait for a slow client.
    """
    messages: list[Message] = []
    size, more = 0, True
    while more and size <= _BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            return None
        messages.append(message)
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    messages.reverse()

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
