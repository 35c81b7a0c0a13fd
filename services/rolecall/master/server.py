"""The process of the control program: one HTTP server that runs until a signal."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from base64 import b64encode
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI
from sqlalchemy.exc import ArgumentError, OperationalError

from rolecall import __version__
from rolecall.edge import listener
from rolecall.edge.connection_table import ConnectionLimits
from rolecall.edge.connections import limited_protocol, raise_open_file_limit
from rolecall.edge.tls import Certificate
from rolecall.kit.coloring import STYLE
from rolecall.logs import OncePerReason, about, log_to_stderr
from rolecall.master.api import (
    attempts,
    audit,
    cluster,
    deletion,
    description,
    downloads,
    files,
    inspection,
    jobs,
    logs,
    nodes,
    openapi,
    preflight,
    submission,
    tokens,
    webhooks,
)
from rolecall.master.api.caching import Private
from rolecall.master.api.error_handlers import RESPONSES, add_problem_handlers
from rolecall.master.api.gate import FollowerLimit, Gate
from rolecall.master.api.limits import BodyLimit, JobsAreJson
from rolecall.master.api.parameters import refuse_unknown_parameters
from rolecall.master.api.standby import ExitGate, StandbyGate
from rolecall.master.api.timing import Timed
from rolecall.master.api.turns import CallTurns
from rolecall.master.blobs import check_url
from rolecall.master.catalogue import Catalogue, load
from rolecall.master.program import Application, Master, Program
from rolecall.master.shutdown import drain_before_exit
from rolecall.master.storage_errors import LeadershipLost, is_full
from rolecall.master.store.database import SCHEMES, Database, is_sqlite
from rolecall.master.tracer import open_sender
from rolecall.master.web import pages, session
from rolecall.master.web.api import ApiError
from rolecall.master.web.render import lacks_libraries
from rolecall.retry import delays_s
from rolecall.settings.master import MasterSettings
from rolecall.spec.errors import SettingsError
from rolecall.trackers import mlflow, tensorboard

LIMITS = ConnectionLimits()
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    # Of pages, and of pictures that are opened on their own.
    "style-src": f"'self' 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
HEADERS = [
    ("Content-Security-Policy", "; ".join(f"{directive} {sources}" for directive, sources in _POLICY.items())),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
]
"""The headers of every response. Pages load nothing from other hosts, and can't be framed."""
_ABOUT = "Runs PyTorch training jobs whose processes play different roles. Submit one with `POST /jobs`."
_MAX_PAUSE_S = 5.0
_SWITCH_S = 0.0005
"""The maximum wait of the event loop for a computing thread. Calls switch threads often, and Python's 5 ms add up."""
_COLLECT_AFTER = 20_000
"""The number of new objects after which Python looks for garbage. A pass over a long queue makes thousands."""
_PROBE = 1 << 16
"""The approximate size of the database's first transaction."""
_LOG = logging.getLogger(__name__)


class _Application(Application):
    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of all routes."""
        if self.openapi_schema is None:
            self.openapi_schema = openapi.complete(super().openapi(), self.program.catalogue)
        return self.openapi_schema


def create_app(program: Program) -> FastAPI:
    """The program as an ASGI application."""
    app = _Application(
        title="Rolecall",
        version=__version__,
        description=_ABOUT,
        lifespan=lambda _: program.running(),
        openapi_url=None,
        # The framework would redirect to the host that the client names in its request.
        redirect_slashes=False,
        responses=RESPONSES,
        dependencies=[Depends(refuse_unknown_parameters)],
        generate_unique_id_function=lambda route: route.name,
    )
    app.program = program
    for module in (
        submission,
        jobs,
        deletion,
        logs,
        files,
        inspection,
        downloads,
        cluster,
        preflight,
        tokens,
        webhooks,
        audit,
        nodes,
        attempts,
        description,
    ):
        app.include_router(module.router)
    app.include_router(cluster.metrics_router)
    app.include_router(cluster.admin_router)
    app.include_router(cluster.open_router)
    app.include_router(inspection.internal_router)
    for router in (session.router, pages.static_router, pages.router):
        app.include_router(router)
    app.include_router(description.nodes_router)
    app.add_middleware(BodyLimit)
    app.add_middleware(JobsAreJson)
    app.add_middleware(FollowerLimit)
    app.add_middleware(audit.Audited)
    app.add_middleware(CallTurns)
    # The last one runs first, so that a request without a token is neither read nor parsed.
    app.add_middleware(Gate)
    app.add_middleware(StandbyGate)
    app.add_middleware(ExitGate)
    app.add_middleware(Timed)
    app.add_middleware(Private)
    add_problem_handlers(app, pages.as_page)
    app.add_exception_handler(ApiError, pages.show_api_error)
    return app


class MasterServer(uvicorn.Server):
    """uvicorn's server, but delayed calls are released before it waits for them."""

    def __init__(self, program: Program, certificate: Certificate | None = None) -> None:
        # A call that is not answered soon after the release is canceled.
        config = uvicorn.Config(
            create_app(program),
            http=limited_protocol(LIMITS, certificate.context if certificate else None),
            ws="none",
            backlog=listener.ACCEPTS,
            headers=HEADERS,
            server_header=False,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)
        self.program = program
        self._scheme = "https" if certificate else "http"
        program.stop = self._stop
        self._leaving: asyncio.Task[None] | None = None

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        """Leave signals to `run`, which returns an exit code."""
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            listener.restore_backlog(one)
            host, port = one.getsockname()[:2]
            address = f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"
            _LOG.info("master listening on %s", address, extra=about("master_listening"))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if (master := self.program.master) is not None:
            master.release()
        await super().shutdown(sockets)

    def handle_exit_signal(self) -> None:
        """Exit: after the first signal when nodes have drained, after the second immediately."""
        master = self.program.master
        if self._leaving is not None or not self.started or master is None:
            self._stop()
        else:
            self._leaving = asyncio.create_task(self._drain_before_exit(master), name="drain before exit")

    async def _drain_before_exit(self, master: Master) -> None:
        try:
            await drain_before_exit(master, master.settings.stop_grace_s)
        finally:
            self._stop()

    def _stop(self) -> None:
        self.should_exit = True


def run(settings: MasterSettings, catalogue: Catalogue | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code, 75 if another master has taken over.

    Raises `SettingsError` if the port is in use, the data folder is unusable, or another master leads.
    """
    log_to_stderr(settings.log_level, settings.log_format)
    raise_open_file_limit(LIMITS)
    sys.setswitchinterval(_SWITCH_S)
    certificate = read_certificate(settings)
    check_folder(settings.data)
    check_standby(settings)
    if settings.blob_url is not None:
        check_url(settings.blob_url)
    require_packages(settings)
    if settings.database_url is not None:
        asyncio.run(await_database(settings.database_url.get_secret_value()))
    with listen(settings.host, settings.port) as server_socket:
        try:
            asyncio.run(_serve(settings, catalogue, server_socket, certificate))
        except LeadershipLost as lost:
            _LOG.error("the master exits, because it no longer leads: %s", lost, extra=about("leadership_lost"))
            return os.EX_TEMPFAIL
    return os.EX_OK


def read_certificate(settings: MasterSettings) -> Certificate | None:
    """The master's certificate, or None for plain HTTP. Raises `SettingsError` for unusable files."""
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise SettingsError("ROLECALL_TLS_CERT and ROLECALL_TLS_KEY belong together; set both, or neither")
    return Certificate(settings.tls_cert, settings.tls_key)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free port. Raises `SettingsError` if the address is unavailable."""
    try:
        return listener.listen(host, port)
    except OSError as error:
        why = f"ROLECALL_PORT={port} on ROLECALL_HOST={host}: {error.strerror}"
        raise SettingsError(f"{why}; end what listens there, or give another port or address") from None


def check_folder(data: Path) -> None:
    """Create the data folder if necessary. Raises `SettingsError` unless files can be written to it."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=data, prefix=".probe-") as probe:
            probe.write(bytes(_PROBE))
            probe.flush()
    except OSError as error:
        remedy = "free some space there, or give it a larger volume" if is_full(error) else "give a folder to write to"
        raise SettingsError(f"ROLECALL_DATA={data}: {error.strerror}; {remedy}") from None


def check_standby(settings: MasterSettings) -> None:
    """Raise `SettingsError` for a standby that can't take over; warn about one without shared checkpoints."""
    if not settings.standby:
        return
    if settings.database_url is None or is_sqlite(settings.database_url.get_secret_value()):
        raise SettingsError(
            "ROLECALL_STANDBY needs PostgreSQL (ROLECALL_DATABASE_URL): SQLite can't be shared by two machines"
        )
    if settings.blob_url is None:
        _LOG.warning(
            "ROLECALL_STANDBY without ROLECALL_BLOB_URL: checkpoints and artifacts are stored in ROLECALL_DATA; unless "
            "all masters share that folder, jobs start from the beginning after a takeover",
            extra=about("standby_without_blob_store"),
        )


def require_packages(settings: MasterSettings) -> None:
    """Raises `MissingPackage` if an optional package is missing that the settings need."""
    if settings.otlp_endpoint is not None:
        open_sender(settings.otlp_endpoint).close()
    if settings.mlflow_uri is not None:
        mlflow.require_packages()
    if settings.tensorboard_dir is not None:
        tensorboard.require_packages()


async def await_database(url: str) -> None:
    """Return when the database answers; until then retry, and log each new reason once."""
    try:
        database = Database(url)
    except (ArgumentError, ValueError):  # For example, special characters in a password make the port invalid.
        why = "ROLECALL_DATABASE_URL is not a URL like postgresql://user:password@host/name"
        raise SettingsError(f"{why} (valid schemes: {', '.join(SCHEMES)})") from None
    reasons = OncePerReason()
    for delay in delays_s(first=0.2, most=_MAX_PAUSE_S, jitter=0):
        try:
            await database.ping()
            break
        except OperationalError as error:
            if reasons.is_new(reason := " ".join(str(error.orig).split())):
                message = "the database (ROLECALL_DATABASE_URL) does not answer: %s; trying again"
                _LOG.warning(message, reason, extra=about("database_unavailable"))
        await asyncio.sleep(delay)
    await database.close()


def keep_collections_short() -> None:
    """Let garbage collection pass over the existing objects: with them, it takes 0.1 s and delays every response."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


async def _serve(
    settings: MasterSettings, catalogue: Catalogue | None, server_socket: socket.socket, certificate: Certificate | None
) -> None:
    if problem := lacks_libraries():
        _LOG.warning("%s", problem, extra=about("page_incomplete"))
    program = Program(settings, catalogue or load())
    server = MasterServer(program, certificate)
    keep_collections_short()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.handle_exit_signal)
    await server.serve(sockets=[server_socket])
    if program.fault is not None:
        raise program.fault
    if not server.started:
        raise SystemExit("the master could not start; its log says why")
