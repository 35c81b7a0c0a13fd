"""Middleware that keeps responses out of the caches of browsers and proxies."""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Private:
    """Adds `Cache-Control` to responses without it, because they depend on the caller's token.

    A browser can keep what has an `ETag`, such as an artifact, but asks the master before each use.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_private(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "private, no-cache" if "ETag" in headers else "no-store")
            await send(message)

        await self._app(scope, receive, send_private if scope["type"] == "http" else send)
