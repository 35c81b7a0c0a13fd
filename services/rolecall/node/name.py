"""What a node is called."""

import re
import socket
import subprocess

import psutil

from rolecall.spec.errors import SettingsError

_LEGAL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12}")
_LOOKUP_S = 5.0


def node_name(chosen: str | None) -> str:
    """The name that was chosen, or else the host name.

    An engine that is told no host name gives a container the beginning of its id, which says nothing to a person and is
    another one each time; then the node is called as its container, e.g. `rolecall-trainer-1`. Raises `SettingsError`.
    """
    name = chosen or _own_name(socket.gethostname().lower())
    if not _LEGAL.fullmatch(name):
        raise SettingsError(
            f"ROLECALL_NODE_NAME (by default the host name) is {name!r}; legal are up to 63 of a-z, 0-9, '-' and '.', "
            "beginning and ending with a letter or digit"
        )
    return name


def _own_name(host: str) -> str:
    if not _CONTAINER_ID.fullmatch(host):
        return host
    names = (_name_of(address) for address in _own_addresses())
    return next((name for name in names if name and _LEGAL.fullmatch(name)), host)


def _own_addresses() -> list[str]:
    found = [one for addresses in psutil.net_if_addrs().values() for one in addresses]
    return [one.address for one in found if one.family is socket.AF_INET and not one.address.startswith("127.")]


def _name_of(address: str) -> str | None:
    """What the engine's name server calls an address: `CONTAINER.NETWORK`.

    The C library would ask the container's own /etc/hosts first, which has the id again; `getent` can be told not to.
    """
    command = ["getent", "--service", "hosts:dns", "hosts", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOKUP_S, check=False)  # noqa: S603 - our own
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    return words[1].partition(".")[0].replace("_", "-").lower() if len(words) > 1 else None
