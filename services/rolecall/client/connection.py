"""Find the master's address and token: from options, the environment, or the cluster that `rolecall local` stored."""

import json
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rolecall.client.errors import ConfigurationError, Unauthorized, Unreachable
from rolecall.network.interfaces import has_address
from rolecall.settings.private_paths import connection_file
from rolecall.spec.node import is_loopback
from rolecall.spec.trust import Trust

_DEFAULT = "127.0.0.1:8080"
_LOOPBACK = re.compile(r"(?<=://)(localhost|127\.0\.0\.1|\[::1\])(?=[:/]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Connection:
    """A master's address and a user's token."""

    url: str
    token: str
    trust: Trust | None = None
    """The CA and name for the verification of the master's certificate, if the environment configures them."""
    origin: str = field(default="", compare=False)
    """The place that the token comes from, such as `ROLECALL_TOKEN`; empty if it is unknown."""

    def is_exposed(self) -> bool:
        """Return whether calls leave this machine in clear text. Resolves the host, and doesn't count unknown ones."""
        try:
            url = urlsplit(self.url)
            found = socket.getaddrinfo(url.hostname, None, type=socket.SOCK_STREAM) if url.scheme == "http" else []
        except (OSError, ValueError):
            return False
        addresses = [str(address[0]) for *_, address in found]
        return any(not is_loopback(address) and not has_address(address) for address in addresses)


def store(connection: Connection) -> Path:
    """Write `connection` to a file that only its owner can read; returns the path."""
    path = connection_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, json.dumps({"url": connection.url, "token": connection.token}))
    return path


def write_secret(path: Path, text: str) -> None:
    """Replace `path` with a file with mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(temporary, "w", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)) as file:
        file.write(text)
    temporary.replace(path)


def forget(connection: Connection, earlier: Connection | None) -> None:
    """Remove the stored cluster if it is still this one; store the `earlier` one again if it still runs."""
    if stored() != connection:
        return
    if earlier is not None and _listens(earlier):
        store(earlier)
    else:
        connection_file().unlink(missing_ok=True)


def _listens(connection: Connection) -> bool:
    try:
        url = urlsplit(connection.url)
        with socket.create_connection((url.hostname or "", url.port or 80), timeout=1):
            return True
    except (OSError, ValueError):
        return False


def stored() -> Connection | None:
    """The cluster that `rolecall local` stored, or None."""
    try:
        content = json.loads(connection_file().read_text())
        return Connection(content["url"], content["token"], origin=str(connection_file()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{connection_file()} can't be read ({error}); remove it, or pass --url") from None


def find(url: str | None, token: str | None, origin: str = "--token") -> Connection:
    """Complete the options with values from the environment and the stored cluster.

    `origin` names the place of `token`, if it is not the one of the environment.
    """
    if token == os.environ.get("ROLECALL_TOKEN"):
        origin = "ROLECALL_TOKEN"
    if not token and (token := _token_from_file()):
        origin = f"ROLECALL_TOKEN_FILE={os.environ['ROLECALL_TOKEN_FILE']}"
    # The TLS settings come from the same variables as those of a node.
    ca, name = os.environ.get("ROLECALL_TLS_CA"), os.environ.get("ROLECALL_TLS_NAME")
    trust = Trust(ca=ca, name=name or None) if ca else None
    local = None if url and token else stored()
    address = (url or (local.url if local else f"{'https' if trust else 'http'}://{_DEFAULT}")).rstrip("/")
    if "://" not in address:
        raise ConfigurationError(f"the URL {address} has no scheme; write http://{address} or https://{address}")
    if token:
        return Connection(address, token, trust, origin)
    if local and _with_one_loopback(local.url) == _with_one_loopback(address):
        return local  # With its own address: another user's program may listen at another name of this machine.
    if not (url or local):
        raise Unreachable(
            "no cluster of `rolecall local` is running on this machine; if one is starting, wait until it prints "
            "`ready`; otherwise start one with `rolecall local`, or name another with --url or ROLECALL_URL",
        )
    raise Unauthorized(
        f"no token for {address}; set ROLECALL_TOKEN or pass --token (or start a local cluster with `rolecall local`)",
    )


def _with_one_loopback(url: str) -> str:
    """The URL with the same host for all names of this machine's loopback interface."""
    return _LOOPBACK.sub("127.0.0.1", url)


def _token_from_file() -> str | None:
    """The token of the master's own settings, so that commands in its container need no options."""
    path = os.environ.get("ROLECALL_TOKEN_FILE")
    try:
        return Path(path).read_text().strip() if path else None
    except OSError as error:
        raise ConfigurationError(f"ROLECALL_TOKEN_FILE={path}: {error.strerror}") from None
