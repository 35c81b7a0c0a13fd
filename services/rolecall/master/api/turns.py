"""Middleware that lets each user and each job have few calls in progress, so that their calls delay only their own.

Python runs one thread at a time. A body of 1 MiB keeps the event loop busy for up to 0.2 s, and everyone waits for it,
nodes included. Users also share the threads that check and plan jobs, and connections to the database.
"""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from weakref import WeakValueDictionary

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.master.api.error_handlers import problem_response
from rolecall.master.api.gate import admission_of, is_of_page, is_open
from rolecall.spec.access import Scope as Scopes

AT_ONCE = 4
"""The number of calls that a token, or a job's workers, have in progress. A call is in progress until its response
starts."""
LARGE_BYTES = 1 << 16
"""A token has one call with a larger body in progress."""
_REST = 3.0
"""The rest of a token after a large body, as a multiple of the call's duration."""
_MAX_REST_S = 1.0
_WAIT_S = 10.0
_MOST_WAITING = 512
"""As many as a token has connections. Clients that hang up leave their calls behind."""
_JOB = "job "
"""Before the id of a job whose workers share turns. No token has a name with a space."""
_INSPECTIONS = ("/timeline", "/stacks", "/profile")
"""These wait for workers, which may not answer, so they don't use up the turns of other calls."""


class CallTurns:
    """Delays the calls of a token that has enough of them in progress, and answers 429 to those that wait too long.

    The workers of a job share its turns when they send JSON. Their files don't wait, and neither do calls of nodes and
    admins, nor pages: they call the API, where they wait.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()
        self._waiting: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _limited_token(scope)
        if token is None:
            await self._app(scope, receive, send)
            return
        is_large = _is_large(Headers(scope=scope))
        lane = "large" if is_large else "inspection" if scope["path"].endswith(_INSPECTIONS) else "other"
        turns = self._turns.setdefault((token, lane), asyncio.Semaphore(1 if is_large else AT_ONCE))
        if not await self._acquire(token, turns):
            owner = f"the workers of {token} have" if token.startswith(_JOB) else "this token has"
            detail = f"{owner} {AT_ONCE} calls in progress already, or one with a large body; try again later"
            headers = {"Retry-After": "10", "Connection": "close"}
            await problem_response(429, detail, Request(scope), headers=headers)(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        began = loop.time()

        def end() -> None:
            rest_s = min(_MAX_REST_S, _REST * (loop.time() - began)) if is_large else 0.0
            loop.call_later(rest_s, turns.release)

        async with AsyncExitStack() as turn:
            turn.callback(end)

            async def ending_send(message: Message) -> None:
                if message["type"] == "http.response.start":
                    await turn.aclose()
                await send(message)

            await self._app(scope, receive, ending_send)

    async def _acquire(self, token: str, turns: asyncio.Semaphore) -> bool:
        """Wait for a turn; return False if there is none in time."""
        if self._waiting[token] >= _MOST_WAITING:
            return False
        self._waiting[token] += 1
        try:
            async with asyncio.timeout(_WAIT_S):
                return await turns.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting[token] -= 1
            if not self._waiting[token]:
                del self._waiting[token]


def _limited_token(scope: Scope) -> str | None:
    """The user's token, or the job of a worker, whose calls are limited; None for other calls."""
    if scope["type"] != "http" or is_open(scope["path"]) or is_of_page(scope["path"]):
        return None
    if scope["path"].startswith("/internal/"):
        job = admission_of(scope).job if scope["method"] == "POST" else ""
        return f"{_JOB}{job}" if job else None
    caller = admission_of(scope).caller
    # By name, because a token has two secrets while it is rotated.
    return None if caller is None or Scopes.ADMIN in caller.scopes else caller.name


def _is_large(headers: Headers) -> bool:
    """Return whether the body is large, or of unknown size."""
    size = headers.get("content-length", "0")
    return "transfer-encoding" in headers or not size.isdecimal() or int(size) > LARGE_BYTES
