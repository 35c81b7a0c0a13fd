"""The network interfaces of this process's network namespace."""

import os
from collections.abc import Iterator

import psutil


def interface_of(address: str) -> str | None:
    """The name of the interface that has `address`."""
    return next((name for name, known in _addresses() if known == address), None)


def has_address(address: str) -> bool:
    return interface_of(address.partition("%")[0]) is not None


def network_namespace() -> str:
    """The kernel's id of the namespace; empty if it isn't known."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def _addresses() -> Iterator[tuple[str, str]]:
    """Each interface's name with each of its addresses, without the zone of a link-local one."""
    for name, addresses in psutil.net_if_addrs().items():
        for known in addresses:
            yield name, known.address.partition("%")[0]
