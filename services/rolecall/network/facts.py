"""The facts of a node about itself that preflight compares between nodes."""

import platform
import socket

from rolecall import __version__
from rolecall.network.interfaces import interface_of
from rolecall.spec.model import Value


class Facts(Value):
    node: str
    address: str
    interface: str
    host: str
    """The machine's or container's own name."""
    resolved: str | None
    """The address that its own name stands for, if it has one."""
    python: str
    torch: str
    rolecall: str = __version__


def collect(node: str, address: str, torch: str) -> Facts:
    """The facts of `node`, on which this process runs. `address` is its address for the gang, `torch` the version."""
    host = socket.gethostname()
    return Facts(
        node=node,
        address=address,
        interface=interface_of(address) or "no interface",
        host=host,
        resolved=_resolved(host),
        python=".".join(platform.python_version_tuple()[:2]),
        torch=torch,
    )


def _resolved(host: str) -> str | None:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except socket.gaierror:
        return None
