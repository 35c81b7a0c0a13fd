"""The control program as a process: one HTTP server until a signal ends it."""

import asyncio
import logging
import signal
import socket
from contextlib import AbstractContextManager, nullcontext

import uvicorn
from fastapi import FastAPI

from rolecall.master.app import create_app, release
from rolecall.master.catalogue import Catalogue
from rolecall.settings import MasterSettings

_BACKLOG = 2048
_log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """uvicorn, but the calls that are held back are released before it waits for them."""

    def __init__(self, app: FastAPI) -> None:
        # At debug, since nodes call every second; a call that is not answered soon after the release is cut off.
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=1)
        super().__init__(config)
        self._app = app

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave the signals to `run`, which ends with a clean exit code."""
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then tell where."""
        await super().startup(sockets)
        for listener in sockets or ():
            _log.info("master listening on http://%s:%d", *listener.getsockname()[:2])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Release who waits, then close."""
        release(self._app)
        await super().shutdown(sockets)


def run(settings: MasterSettings, catalogue: Catalogue | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises `OSError` when the port is taken."""
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    with listen(settings.host, settings.port) as listener:
        asyncio.run(_serve(settings, catalogue, listener))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=_BACKLOG)


async def _serve(settings: MasterSettings, catalogue: Catalogue | None, listener: socket.socket) -> None:
    server = Server(create_app(settings, catalogue))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, setattr, server, "should_exit", True)
    await server.serve(sockets=[listener])
    if not server.started:
        raise SystemExit("the master could not start; its log says why")
