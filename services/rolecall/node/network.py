"""Which network interface leads to the master: TensorPipe, Gloo and NCCL are bound to it.

Left alone they resolve the container's own host name, which may be a loopback address, or the wrong one of several.
"""

import asyncio
import logging
import socket
from typing import NamedTuple

import psutil

from rolecall.node.backoff import delays_s
from rolecall.spec.errors import SettingsError

_LOG = logging.getLogger(__name__)


class Route(NamedTuple):
    """Where this machine's packets to the master leave it."""

    interface: str
    address: str

    @property
    def environment(self) -> dict[str, str]:
        """What binds a worker's communication to the interface."""
        return dict.fromkeys(("TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), self.interface)


async def route_to(host: str, port: int) -> Route:
    """The kernel's route to the master; waits, with a line in the log, until its name resolves and a route exists."""
    said = ""
    for delay in delays_s():
        try:
            route = await _route(host, port)
        except OSError as error:
            if (reason := str(error)) != said:
                _LOG.warning("no way to the master yet: MASTER_ADDR=%s: %s; trying again", host, reason)
            said = reason
            await asyncio.sleep(delay)
        else:
            _LOG.info("workers use interface %s (%s), this machine's way to %s", route.interface, route.address, host)
            return route
    raise AssertionError("delays never end")


async def _route(host: str, port: int) -> Route:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, target = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # Sends nothing: a datagram socket's connect only asks for the route.
        address = str(probe.getsockname()[0])
    return Route(_interface_of(address), address)


def _interface_of(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.partition("%")[0] == address for known in addresses):
            return name
    raise SettingsError(
        f"the route to the master starts at {address}, which no network interface of this machine bears"
    )
