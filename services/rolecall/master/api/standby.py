"""Middleware that answers for a master that doesn't lead yet, and for one that exits."""

import asyncio

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.master.api.error_handlers import problem_response
from rolecall.master.program import program_of
from rolecall.spec.errors import STANDBY

_EXITS = "the master exits before it could complete this call; try again"
_DETAIL = "standing by for another master, which leads; this one takes over when that one ends"


class StandbyGate:
    """Answers 503 to every request except `/healthz` while this master doesn't lead."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/healthz" or program_of(scope["app"]).master is not None:
            await self._app(scope, receive, send)
        else:
            # The token is not checked yet, so only the log names the leading master.
            await problem_response(503, _DETAIL, Request(scope), kind=STANDBY)(scope, receive, send)


class ExitGate:
    """Answers 503 to a call that is canceled because the master exits. The server itself would answer 500."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = False

        async def sent(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except asyncio.CancelledError:
            if scope["type"] == "http" and not answered:
                await problem_response(503, _EXITS, Request(scope))(scope, receive, send)
            raise
