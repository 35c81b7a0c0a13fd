"""Middleware that measures how long the callers wait for a response."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.master.program import program_of

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_WAIT_FOR_NEWS = frozenset({"/internal/nodes/{name}/heartbeat"})
"""Calls whose response is delayed on purpose."""


class Timed:
    """Records the time from a call to the start of its response, by the template of its path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                _note(scope, message["status"], time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, send_and_note)


def _note(scope: Scope, status: int, seconds: float) -> None:
    # Users choose methods and paths. Only those of a known route may become labels.
    template = getattr(scope.get("route"), "path", "other")
    method = scope["method"] if scope["method"] in _METHODS else "other"
    master = program_of(scope["app"]).master
    if master is not None and template not in _WAIT_FOR_NEWS:
        master.instruments.request(method, template, status, seconds)
