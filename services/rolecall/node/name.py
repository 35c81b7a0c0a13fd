import re
import socket
import subprocess

import psutil

from rolecall.spec.errors import SettingsError

_LEGAL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_CONTAINER_ID = re.compile(r"[0-9a-f]{12}")
_LOOKUP_S = 5.0


def node_name(configured: str | None) -> str:
    """The configured name, by default the host name. Raises `SettingsError` for an invalid name.

    If the host name is the beginning of the container's id, which is different each time, the name is that of the
    container, such as `rolecall-trainer-1`.
    """
    name = configured or socket.gethostname().lower()
    if not configured and _CONTAINER_ID.fullmatch(name):
        own = [one for addresses in psutil.net_if_addrs().values() for one in addresses]
        own = [one.address for one in own if one.family is socket.AF_INET and not one.address.startswith("127.")]
        names = (_name_of(address) for address in own)
        name = next((one for one in names if one and _LEGAL.fullmatch(one)), name)
    if not _LEGAL.fullmatch(name):
        raise SettingsError(
            f"ROLECALL_NODE_NAME (by default the host name) is {name!r}; valid are up to 63 of a-z, 0-9, '-' and '.', "
            "beginning and ending with a letter or digit"
        )
    return name


def _name_of(address: str) -> str | None:
    """The container's name in the engine's name server, which has `CONTAINER.NETWORK` for an address.

    The C library reads the container's own /etc/hosts first, which has the id; `getent` can skip it.
    """
    command = ["getent", "--service", "hosts:dns", "hosts", address]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LOOKUP_S, check=False)  # noqa: S603 - our own
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.split()
    return words[1].partition(".")[0].replace("_", "-").lower() if len(words) > 1 else None
