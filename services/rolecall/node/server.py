"""The node's process: describes the machine, waits for a route to the master, and runs the daemon until a signal."""

import asyncio
import errno
import fcntl
import gc
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from rolecall import __version__
from rolecall.edge.connection_table import ConnectionLimits, GroupLimit
from rolecall.edge.connections import limited_protocol
from rolecall.edge.listener import listen
from rolecall.logs import log_to_stderr
from rolecall.network.interfaces import network_namespace
from rolecall.network.routes import Route, await_route
from rolecall.node.client import MasterClient
from rolecall.node.daemon import Daemon
from rolecall.node.devices import describe_machine, find_gpus
from rolecall.node.folder import delete_work, short_name
from rolecall.node.fork_client import ForkClient
from rolecall.node.gpu_readings import GpuReadings
from rolecall.node.health import NodeHealth
from rolecall.node.name import node_name
from rolecall.node.scrape_access import ScrapeAccess
from rolecall.node.self_check import SelfCheck
from rolecall.node.telemetry import GpuCollector, NodeCollector, TelemetryServer, app
from rolecall.settings.node import NodeSettings, read_node_token, read_scrape_tokens
from rolecall.spec.errors import RolecallError, SettingsError
from rolecall.spec.node import Gpu, NodeSpec

_LOG = logging.getLogger(__name__)
# Only Prometheus and health checks call.
_LIMITS = ConnectionLimits(connections=128, anonymous=GroupLimit(64, 128))


def run(settings: NodeSettings, fork_arguments: Sequence[str] = ()) -> int:
    """Run the node until a signal; returns the exit code. Raises `SettingsError` for errors that the operator must fix.

    `fork_arguments` are arguments of the fork server (see `rolecall.worker.fork_server`); by default, the role.
    """
    log_to_stderr(settings.log_level, settings.log_format)
    settings = settings.model_copy(update={"name": node_name(settings.name)})
    # The imported objects are permanent. A collection that visits them, such as the one at exit, takes 0.1 s.
    gc.freeze()
    with _locked_home(settings), short_name(settings.home / "work") as work:
        delete_work(settings.home / "work")
        try:
            asyncio.run(_run(settings, work, fork_arguments))
        except BaseExceptionGroup as group:
            # Before Python 3.11.4, `except*` wraps the raised error in a group again.
            errors = group.subgroup(RolecallError)
            if errors is None:
                raise
            while isinstance(error := errors.exceptions[0], BaseExceptionGroup):
                errors = error
            raise error from None
    return os.EX_OK


async def _run(settings: NodeSettings, work: Path, fork_arguments: Sequence[str]) -> None:
    listener = _listen(settings)
    health = NodeHealth(settings.known_name, settings.role)
    access = ScrapeAccess(read_scrape_tokens, now=lambda: datetime.now(UTC))
    served = app(health, access)
    server = TelemetryServer(
        uvicorn.Config(
            served, http=limited_protocol(_LIMITS), ws="none", log_config=None, access_log=False, lifespan="off"
        )
    )
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        route = await _find_route(settings, health)
        if route is not None:
            client = MasterClient(settings.master_url, read_node_token, settings.trust)
            gpus, inventory = find_gpus(os.environ)
            daemon = Daemon(
                settings,
                describe_node(settings, health.name, route, listener.getsockname()[1], gpus),
                route,
                client,
                work=work,
                forks=ForkClient(fork_arguments or ("--role", settings.role)),
                self_check=SelfCheck(settings, client, inventory, on_info=access.update),
                health=health,
            )
            served.state.registry.register(NodeCollector(daemon))
            served.state.slow.register(GpuCollector(GpuReadings([gpu.whole for gpu in gpus])))
            _on_signals(daemon.stop)
            try:
                await daemon.run()
            finally:
                await client.close()
        # Faster than uvicorn's shutdown, which polls twice for 0.1 s. No request has to be finished.
        serving.cancel()


async def _find_route(settings: NodeSettings, health: NodeHealth) -> Route | None:
    """The route to the master, or None if a signal ends the wait."""
    finding = asyncio.ensure_future(await_route(settings.master_addr, settings.port, health.wait_for))
    _on_signals(finding.cancel)
    await asyncio.wait({finding})
    return None if finding.cancelled() else finding.result()


def describe_node(
    settings: NodeSettings, name: str, route: Route, metrics_port: int, gpus: tuple[Gpu, ...]
) -> NodeSpec:
    """The node's registration."""
    machine = describe_machine(settings.cpu_slots, gpus, settings.workers_per_gpu)
    return NodeSpec(
        name=name,
        role=settings.role,
        slots=settings.slots or machine.capacity(settings.role),
        address=route.address,
        interface=route.interface,
        network_namespace=network_namespace(),
        metrics_port=metrics_port,
        machine=machine,
        version=__version__,
        started=uuid.uuid4().hex,
    )


def _on_signals(stop: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _listen(settings: NodeSettings) -> socket.socket:
    try:
        return listen(settings.host, settings.metrics_port)
    except OSError as error:
        raise SettingsError(
            f"ROLECALL_METRICS_PORT={settings.metrics_port} on {settings.host}: {error.strerror}; "
            "choose another port, or 0 for a free one"
        ) from None


@contextmanager
def _locked_home(settings: NodeSettings) -> Generator[None, None, None]:
    """Lock the node's folder, because a second node would delete the first one's work."""
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        lock = (settings.home / "node.lock").open("a")
    except OSError as error:
        remedy = "free some space there" if error.errno in {errno.ENOSPC, errno.EDQUOT} else "give a folder to write to"
        raise SettingsError(f"ROLECALL_DATA={settings.data}: {error.strerror}; {remedy}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"another node {settings.known_name} uses ROLECALL_DATA={settings.data}; "
                "give one of them another ROLECALL_NODE_NAME, or each its own folder"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield
