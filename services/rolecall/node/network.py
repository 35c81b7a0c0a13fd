"""Which network interface leads to the master: TensorPipe, Gloo and NCCL are bound to it.

Left alone they resolve the container's own host name, which may be a loopback address, or the wrong one of several.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable
from typing import NamedTuple

import psutil

from rolecall.retry import delays_s

_LOG = logging.getLogger(__name__)


class Route(NamedTuple):
    """Where this machine's packets to the master leave it."""

    interface: str
    address: str

    @property
    def environment(self) -> dict[str, str]:
        """What binds a worker's communication to the interface."""
        return dict.fromkeys(("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), self.interface)


class Way(NamedTuple):
    """A route, and the master's addresses that were to choose from."""

    route: Route
    resolved: tuple[str, ...]


async def route_to(host: str, port: int, tell: Callable[[str], None]) -> Route:
    """The kernel's route to the master; waits until its name resolves and a route exists.

    `tell` hears what it waits for, each reason once; the log has the same.
    """
    said = ""
    for delay in delays_s():
        try:
            route, _ = await find_way(host, port)
        except OSError as error:
            reason = f"no way to the master yet: MASTER_ADDR={host}: {error.strerror or error}"
            if reason != said:
                _LOG.warning(
                    "%s; trying again (is the name right, and is this container on the master's network?)", reason
                )
                tell(reason)
            said = reason
            await asyncio.sleep(delay)
        else:
            _LOG.info("workers use interface %s (%s), this machine's way to %s", route.interface, route.address, host)
            return route
    raise AssertionError("delays never end")


async def find_way(host: str, port: int) -> Way:
    """The way as it is now. Raises `OSError` when there is none, e.g. because the name doesn't resolve."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except UnicodeError as error:
        why = "no legal name: each part between its dots has 1 to 63 characters"
        raise socket.gaierror(socket.EAI_NONAME, why) from error
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # Sends nothing: a datagram socket's connect only asks for the route.
        address = str(probe.getsockname()[0])
    resolved = dict.fromkeys(str(one[4][0]) for one in found)
    return Way(Route(_interface_of(address), address), tuple(resolved))


def has_address(address: str) -> bool:
    """Whether an interface of this network namespace still has `address`."""
    return any(
        known.address.partition("%")[0] == address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for known in addresses
    )


def network_namespace() -> str:
    """The kernel's id of this process's network namespace; empty where it doesn't say."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def _interface_of(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.partition("%")[0] == address for known in addresses):
            return name
    why = f"the route to the master starts at {address}, which no network interface of this machine bears"
    raise OSError(errno.EADDRNOTAVAIL, why)
