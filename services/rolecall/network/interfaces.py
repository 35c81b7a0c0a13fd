"""The network interfaces of this process's network namespace."""

import os

import psutil


def interface_of(address: str) -> str | None:
    """The name of the interface that has `address`."""
    for name, addresses in psutil.net_if_addrs().items():
        # Without the zone of a link-local address.
        if any(known.address.partition("%")[0] == address for known in addresses):
            return name
    return None


def has_address(address: str) -> bool:
    return interface_of(address.partition("%")[0]) is not None


def network_namespace() -> str:
    """The kernel's id of the namespace; empty if it isn't known."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""
