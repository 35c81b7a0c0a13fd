"""The wait of calls for their turns, with limits, and the end of a turn."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.master.api.error_handlers import problem_response

_PART_BYTES = 1 << 16


class Waiters:
    """The calls that wait for a turn, counted by client: an address, or what shares turns."""

    def __init__(self) -> None:
        self._waiting: Counter[str] = Counter()

    async def acquire(self, client: str, *turns: asyncio.Semaphore, most: int, wait_s: float) -> bool:
        """Acquire `turns`, one after the other.

        Returns False, and holds none of them, if `most` calls of the client wait already, or after `wait_s`.
        """
        if self._waiting[client] >= most:
            return False
        self._waiting[client] += 1
        try:
            with ExitStack() as acquired:
                async with asyncio.timeout(wait_s):
                    for turn in turns:
                        await turn.acquire()
                        acquired.callback(turn.release)
                acquired.pop_all()
            return True
        except TimeoutError:
            return False
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]


async def refuse(detail: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 429 to a call that gets no turn, and close its connection."""
    await problem_response(429, detail, Request(scope), headers={"Connection": "close"})(scope, receive, send)


async def until_sent(app: ASGIApp, scope: Scope, receive: Receive, send: Send, end: Callable[[], None]) -> None:
    """Call `app`, and `end` when its response begins to stream.

    Other responses are sent in parts, each of which waits until the client has read the one before. So the call lasts
    until the client has read its response, which occupies memory until then.
    """

    async def send_in_parts(message: Message) -> None:
        if message["type"] != "http.response.body":
            # A followed log has no length, and its first line may come late.
            if message["type"] == "http.response.start" and "Content-Length" not in MutableHeaders(scope=message):
                end()
            await send(message)
            return
        if message.get("more_body", False):
            end()
            await send(message)
            return
        body = message.get("body", b"")
        for start in range(0, len(body) or 1, _PART_BYTES):
            more = start + _PART_BYTES < len(body)
            await send({**message, "body": body[start : start + _PART_BYTES], "more_body": more})

    await app(scope, receive, send_in_parts)


async def until_response(app: ASGIApp, scope: Scope, receive: Receive, send: Send, end: Callable[[], None]) -> None:
    """Call `app`, and `end` when its response starts."""

    async def ending_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            end()
        await send(message)

    await app(scope, receive, ending_send)
