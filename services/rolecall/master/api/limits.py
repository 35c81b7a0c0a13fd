"""Middleware for bodies: it limits their size, and treats a submitted job as JSON."""

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

USER_BYTES = 1 << 20
WORKER_BYTES = 4 << 20
"""Enough for the manifest of a checkpoint with `MAX_PARTS` parts whose names have 100 characters."""
NODE_BYTES = 16 << 20
_UNBOUNDED = ("/streams/", "/blobs/")


class BodyLimit:
    """Answers 413 as soon as the received part of a body is too large. Uploads of files have no limit here."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (limit := body_limit(scope["path"])) is not None:
            receive = _counting(receive, limit)
        await self._app(scope, receive, send)


class JobsAreJson:
    """Treats the body of `POST /jobs` as JSON, because `curl -d` calls it a form.

    This is safe because a form on another site has no token.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["method"], scope["path"]) == ("POST", "/jobs"):
            MutableHeaders(scope=scope)["content-type"] = "application/json"
        await self._app(scope, receive, send)


def body_limit(path: str) -> int | None:
    """The maximum size of a body for this path; None for files."""
    if path.startswith("/internal/jobs/"):
        return None if any(part in path for part in _UNBOUNDED) else WORKER_BYTES
    return NODE_BYTES if path.startswith("/internal/") else USER_BYTES


def _counting(receive: Receive, limit: int) -> Receive:
    read = 0

    async def counted() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > limit:
            raise HTTPException(413, f"the body is larger than {limit} bytes", {"Connection": "close"})
        return message

    return counted
