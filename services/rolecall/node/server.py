"""The node's entry: looks at the machine, waits for the way to the master, serves until told to stop."""

import asyncio
import fcntl
import logging
import os
import re
import signal
import socket
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import uvicorn

from rolecall import __version__
from rolecall.node.client import MasterClient
from rolecall.node.daemon import Daemon, clear_work
from rolecall.node.devices import default_slots, describe_machine
from rolecall.node.fork_client import ForkClient
from rolecall.node.network import Route, route_to
from rolecall.node.telemetry import Server, app
from rolecall.settings import NodeSettings
from rolecall.spec.errors import RolecallError, SettingsError
from rolecall.spec.node import NodeSpec

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def run(settings: NodeSettings, fork_arguments: Sequence[str] = ()) -> int:
    """Run the node until a signal; returns the exit code. Raises `SettingsError` for what its operator must mend.

    `fork_arguments` go to the fork server (see `rolecall.worker.fork_server`).
    """
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with _own_data(settings):
        clear_work(settings.data)
        try:
            asyncio.run(_run(settings, fork_arguments))
        except* RolecallError as errors:
            raise _first(errors) from None
    return os.EX_OK


async def _run(settings: NodeSettings, fork_arguments: Sequence[str]) -> None:
    route = await route_to(settings.master_addr, settings.port)
    listener = _listen(settings)
    client = MasterClient(settings.master_url, settings.node_token.get_secret_value())
    spec = describe_node(settings, route, listener.getsockname()[1])
    daemon = Daemon(settings, spec, route, client, ForkClient(fork_arguments))
    _on_signals(daemon.stop)
    server = Server(uvicorn.Config(app(daemon, settings.node_token), log_config=None, access_log=False, lifespan="off"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]))
        await daemon.run()
        server.should_exit = server.force_exit = True
    await client.close()


def describe_node(settings: NodeSettings, route: Route, metrics_port: int) -> NodeSpec:
    """What this node tells the master about itself."""
    machine = describe_machine(settings.cpu_slots)
    return NodeSpec(
        name=_name(settings),
        role=settings.role,
        slots=settings.slots or default_slots(machine, settings.role),
        address=route.address,
        interface=route.interface,
        metrics_port=metrics_port,
        machine=machine,
        version=__version__,
        started=uuid.uuid4().hex,
    )


def _name(settings: NodeSettings) -> str:
    name = settings.name or socket.gethostname().lower()
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"ROLECALL_NODE_NAME (or else the host name) is {name!r}; legal are up to 63 of a-z, 0-9, '-' and '.', "
            "beginning and ending with a letter or digit"
        )
    return name


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


def _listen(settings: NodeSettings) -> socket.socket:
    try:
        return socket.create_server((settings.host, settings.metrics_port))
    except OSError as error:
        raise SettingsError(
            f"ROLECALL_METRICS_PORT={settings.metrics_port} on {settings.host}: {error.strerror}; "
            "give another one, or 0 for any that is free"
        ) from None


@contextmanager
def _own_data(settings: NodeSettings) -> Generator[None, None, None]:
    """Hold the data folder: a second node in it would delete the first one's work."""
    path = settings.data / "node.lock"
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise SettingsError(f"ROLECALL_DATA={settings.data}: {error.strerror}; give a folder to write to") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(f"another node uses ROLECALL_DATA={settings.data}; give each its own") from None
        yield


def _first(errors: BaseExceptionGroup[RolecallError]) -> RolecallError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
