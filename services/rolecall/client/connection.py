"""Find the master's address and token: from options, the environment, or the clusters of `rolecall local`."""

import fcntl
import json
import os
import re
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from rolecall.client.errors import ConfigurationError, Unauthorized, Unreachable
from rolecall.network.interfaces import has_address
from rolecall.settings.private_paths import connection_file, connection_files
from rolecall.spec.node import is_loopback
from rolecall.spec.trust import Trust

_DEFAULT = "127.0.0.1:8080"
_LOOPBACK = re.compile(r"(?<=://)(localhost|127\.0\.0\.1|\[::1\])(?=[:/]|$)", re.IGNORECASE)
DATA_FOLDER = ".rolecall"
"""The default name of the data folder of a `rolecall local`."""
_LAST = "which started last of several local clusters"
_CONTENT = TypeAdapter(dict[str, str])
"""The connection files."""
_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Connection:
    """A master's address and a user's token."""

    url: str
    token: str
    trust: Trust | None = None
    """The CA and name for the verification of the master's certificate, if the environment configures them."""
    origin: str = field(default="", compare=False)
    """The place that the token comes from, such as `ROLECALL_TOKEN`; empty if it is unknown."""
    data: str = field(default="", compare=False)
    """The absolute path of the data folder of a cluster of `rolecall local`."""
    guess: str = field(default="", compare=False)
    """The reason why this local cluster may be the wrong one; empty if the user or the current folder names it."""

    def is_exposed(self) -> bool:
        """Return whether calls leave this machine in clear text. Resolves the host, and doesn't count unknown ones."""
        try:
            url = urlsplit(self.url)
            found = socket.getaddrinfo(url.hostname, None, type=socket.SOCK_STREAM) if url.scheme == "http" else []
        except (OSError, ValueError):
            return False
        addresses = [str(address[0]) for *_, address in found]
        return any(not is_loopback(address) and not has_address(address) for address in addresses)


@contextmanager
def announced(connection: Connection) -> Generator[Path]:
    """Let the other commands find this cluster of `rolecall local` until the end of the body, by a connection file."""
    path = connection_file(connection.data)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_secret(path, json.dumps({"url": connection.url, "token": connection.token, "data": connection.data}))
    # The lock ends with this process, so that the file of a killed cluster counts for nothing.
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def write_secret(path: Path, text: str) -> None:
    """Replace `path` with a file with mode 0600."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)  # Of a killed process with the same id.
    with open(temporary, "w", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)) as file:
        file.write(text)
    temporary.replace(path)


def running() -> list[Connection]:
    """The running clusters of `rolecall local`, the one that started last first."""
    found: list[tuple[int, Connection]] = []
    for path in connection_files():
        try:
            with path.open("rb") as file:
                if _is_locked(file):
                    content = _CONTENT.validate_json(file.read(_MAX_BYTES))
                    one = Connection(content["url"], content["token"], origin=str(path), data=content["data"])
                    found.append((os.fstat(file.fileno()).st_mtime_ns, one))
        except FileNotFoundError:
            continue  # It has just ended.
        except (OSError, ValueError, KeyError) as error:
            why = error if isinstance(error, OSError) else "it has no url, token and data"
            raise ConfigurationError(f"{path} can't be read ({why}); remove it, or pass --url and --token") from None
    return [connection for _, connection in sorted(found, key=lambda one: one[0], reverse=True)]


def _is_locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _choose(clusters: Sequence[Connection], here: Path) -> Connection | None:
    """The cluster with its data folder in the folder `here` or the nearest parent, or else the first one."""

    def nearness(cluster: Connection) -> int:
        folder = Path(cluster.data).parent
        return len(folder.parts) if here.is_relative_to(folder) else 0

    if not clusters:
        return None
    most = max(map(nearness, clusters))
    first, *others = (cluster for cluster in clusters if nearness(cluster) == most)
    data = _data_folder(here)
    if data and len(data.parent.parts) >= most and all(Path(one.data) != data for one in (first, *others)):
        return replace(first, guess=f"because the cluster of {data} isn't running")
    return replace(first, guess=_LAST if others else "")


def _data_folder(here: Path) -> Path | None:
    """The data folder with the default name in the folder `here` or the nearest parent, if a cluster has used it."""
    folders = (folder / DATA_FOLDER for folder in (here, *here.parents))
    return next((folder for folder in folders if os.path.isdir(folder / "master")), None)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # It has been removed.
        return Path("/")


def find(url: str | None, token: str | None, origin: str = "--token") -> Connection:
    """Complete the options with values from the environment and a running `rolecall local`.

    `origin` names the place of `token`, if it is not the one of the environment.
    """
    if token == os.environ.get("ROLECALL_TOKEN"):
        origin = "ROLECALL_TOKEN"
    if not token and (token := _token_from_file()):
        origin = f"ROLECALL_TOKEN_FILE={os.environ['ROLECALL_TOKEN_FILE']}"
    # The TLS settings come from the same variables as those of a node.
    ca, name = os.environ.get("ROLECALL_TLS_CA"), os.environ.get("ROLECALL_TLS_NAME")
    trust = Trust(ca=ca, name=name or None) if ca else None
    here, clusters = _current_folder(), [] if url and token else running()
    if url:
        same = (one for one in clusters if _with_one_loopback(one.url) == _with_one_loopback(url.rstrip("/")))
        local = next(same, None)
    else:
        local = _choose(clusters, here)
    address = (url or (local.url if local else f"{'https' if trust else 'http'}://{_DEFAULT}")).rstrip("/")
    if "://" not in address:
        raise ConfigurationError(f"the URL {address} has no scheme; write http://{address} or https://{address}")
    if token:
        return Connection(address, token, trust, origin, guess=local.guess if local else "")
    if local:
        return local  # With its own address: another user's program may listen at another name of this machine.
    if not url:
        raise Unreachable(_none_runs(_data_folder(here)))
    raise Unauthorized(
        f"no token for {address}; set ROLECALL_TOKEN or pass --token (or start a local cluster with `rolecall local`)",
    )


def _none_runs(data: Path | None) -> str:
    """The error without a running cluster, where `data` is the data folder of the current folder's."""
    what, remedy = "no cluster of `rolecall local` is running on this machine", "start one with `rolecall local`"
    if data is not None:
        what = f"the cluster of {data} isn't running"
        remedy = f"start it with `rolecall local` in {data.parent}, where it continues its jobs"
    starting = "if one is starting, wait until it prints `ready`"
    return f"{what}; {starting}; otherwise {remedy}, or name another with --url or ROLECALL_URL"


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
