"""Middleware that lets each user, and the jobs of each, have few calls in progress, so that they delay only their own.

Python runs one thread at a time. A body of 1 MiB keeps the event loop busy for up to 0.2 s, and everyone waits for it,
nodes included. Users also share the threads that check and plan jobs, and connections to the database.
"""

import asyncio
from contextlib import ExitStack
from typing import NamedTuple
from weakref import WeakValueDictionary

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from rolecall.master.api.gate import admission_of, is_of_page, is_open
from rolecall.master.api.waiting import Waiters, refuse, until_sent
from rolecall.master.program import master_of
from rolecall.spec.access import Scope as Scopes

AT_ONCE = 4
"""The number of calls that a token, or the workers of an owner's jobs, have in progress. A call is in progress until
its response is sent, or begins to stream."""
DOWNLOADS = 8
"""The same for downloads by the workers of an owner's jobs. A response starts within milliseconds."""
UPLOADS = 16
"""The same for uploads, which take the time of the network and the disk as well. As many threads write them, so more
at a time would not be faster."""
_LONG_S = 2.0
"""An upload that takes longer gives its turn to others and continues. Long uploads are few calls, and if others waited
for all of them, a worker of a large gang would give up. With 200 uploads, the last one waits for 25 s at most."""
LARGE_BYTES = 1 << 16
"""A token has one call with a larger body in progress."""
_REST = 3.0
"""The rest of a token after a large body, as a multiple of the call's duration."""
_MAX_REST_S = 1.0
_WAIT_S = 10.0
_UPLOAD_WAIT_S = 45.0
"""Less than the time after which a worker gives up a write. Then it tries again."""
_MOST_WAITING = 512
"""As many as a token has connections. Clients that hang up leave their calls behind."""
_WORKERS = "workers of "
"""Before the owner of the jobs whose workers share turns. No token has a name with a space."""
_INSPECTIONS = ("/timeline", "/stacks", "/profile")
"""These wait for workers, which may not answer, so they don't use up the turns of other calls."""


class _Lane(NamedTuple):
    """The calls that share turns."""

    token: str
    kind: str
    width: int = AT_ONCE
    wait_s: float | None = None
    """The longest wait for a turn; None for the usual one."""


class CallTurns:
    """Delays the calls of a token that has enough of them in progress, and answers 429 to those that wait too long.

    The workers of all jobs of an owner share turns. Calls of nodes and admins don't wait. Pages and the pictures on
    them have turns of their own, because they call the API. A response that is not read keeps its turn, so that the
    master holds few of a token.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns: WeakValueDictionary[_Lane, asyncio.Semaphore] = WeakValueDictionary()
        self._waiters = Waiters()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lane = _lane(scope)
        if lane is None:
            await self._app(scope, receive, send)
            return
        turns = self._turns.setdefault(lane, asyncio.Semaphore(lane.width))
        wait_s = lane.wait_s or _WAIT_S
        if not await self._waiters.acquire(lane.token, turns, most=_MOST_WAITING, wait_s=wait_s):
            owner = f"the {lane.token}'s jobs have" if lane.token.startswith(_WORKERS) else "this token has"
            most = AT_ONCE if lane.kind == "large" else lane.width
            detail = f"{owner} {most} calls in progress already, or one with a large body; try again later"
            await refuse(detail, scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        began = loop.time()

        def end() -> None:
            rest_s = min(_MAX_REST_S, _REST * (loop.time() - began)) if lane.kind == "large" else 0.0
            loop.call_later(rest_s, turns.release)

        with ExitStack() as turn:
            turn.callback(end)
            if lane.kind == "upload":
                turn.callback(loop.call_later(_LONG_S, turn.close).cancel)
            await until_sent(self._app, scope, receive, send, turn.close)


def _lane(scope: Scope) -> _Lane | None:
    """The lane of a call of a user or a worker; None for other calls."""
    if scope["type"] != "http" or is_open(scope["path"]):
        return None
    found = admission_of(scope)
    if found.job:
        token = f"{_WORKERS}{_owner(scope, found.job)}"
        if scope["method"] == "PUT":
            return _Lane(token, "upload", UPLOADS, _UPLOAD_WAIT_S)
        if scope["method"] != "POST":
            return _Lane(token, "download", DOWNLOADS)
    # By name, because a token has two secrets while it is rotated.
    elif scope["path"].startswith("/internal/") or found.caller is None or Scopes.ADMIN in found.caller.scopes:
        return None
    else:
        token = found.caller.name
    headers = Headers(scope=scope)
    size = headers.get("content-length", "0")
    is_of_unknown_size = "transfer-encoding" in headers or not size.isdecimal()
    if is_of_unknown_size or int(size) > LARGE_BYTES:
        return _Lane(token, "large", 1)
    if is_of_page(scope["path"]):
        # A picture calls the API's inspection itself. With the same turns, it would wait for those of other pictures.
        kind = "picture" if scope["path"].endswith("/picture") else "page"
    else:
        kind = "inspection" if scope["path"].endswith(_INSPECTIONS) else "other"
    return _Lane(token, kind)


def _owner(scope: Scope, job: str) -> str:
    """The owner of a job that holds slots; empty for others, whose workers are refused."""
    gang = master_of(scope["app"]).view.gangs.get(job)
    return gang.job.owner if gang else ""
