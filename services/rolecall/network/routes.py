"""The route to the master, whose network interface TensorPipe, Gloo and NCCL are bound to.

By default, they resolve the container's own host name, which may be a loopback address, or the wrong one of several.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import NamedTuple

from rolecall.daemon_thread import run_in_daemon_thread
from rolecall.logs import OncePerReason, about
from rolecall.network.interfaces import interface_of
from rolecall.retry import delays_s

_LOG = logging.getLogger(__name__)


class Route(NamedTuple):
    """The interface and address of this machine's packets to the master."""

    interface: str
    address: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that bind a worker's communication to the interface."""
        return dict.fromkeys(("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), self.interface)


class ResolvedRoute(NamedTuple):
    """A route, and all addresses that the master's name resolves to."""

    route: Route
    resolved: tuple[str, ...]


async def await_route(host: str, port: int, on_wait: Callable[[str], None]) -> Route:
    """Wait until the master's name resolves and a route to it exists.

    `on_wait` gets each reason to wait once, like the log.
    """
    reasons = OncePerReason()
    for delay in delays_s():
        try:
            route, _ = await find_route(host, port)
        except OSError as error:
            reason = f"no route to the master yet: MASTER_ADDR={host}: {error.strerror or error}"
            if reasons.is_new(reason):
                hint = "is the name right, and is this container on the master's network?"
                _LOG.warning("%s; retrying (%s)", reason, hint, extra=about("route_missing"))
                on_wait(reason)
            await asyncio.sleep(delay)
        else:
            text = "workers use interface %s (%s), this machine's route to %s"
            _LOG.info(text, route.interface, route.address, host, extra=about("route_found"))
            return route
    raise AssertionError("delays never end")


async def find_route(host: str, port: int) -> ResolvedRoute:
    """The current route. Raises `OSError` when there is none, for example because the name doesn't resolve."""
    try:
        found = await run_in_daemon_thread(socket.getaddrinfo, host, port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        cause = "not a valid name: each part between its dots must have 1 to 63 characters"
        raise socket.gaierror(socket.EAI_NONAME, cause) from error
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # Sends nothing: a datagram socket's connect only asks for the route.
        address = str(probe.getsockname()[0])
    resolved = dict.fromkeys(str(one[4][0]) for one in found)
    if (interface := interface_of(address)) is None:
        cause = f"the route to the master starts at {address}, which is on no network interface of this machine"
        raise OSError(errno.EADDRNOTAVAIL, cause)
    return ResolvedRoute(Route(interface, address), tuple(resolved))
