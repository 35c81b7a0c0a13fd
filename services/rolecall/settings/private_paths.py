"""The paths that jobs may never read."""

import json
import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from rolecall.settings.secrets import secret_files

PRIVATE_PATHS = "ROLECALL_PRIVATE_PATHS"
"""A variable that Rolecall sets for the programs that it starts: the private paths of its own environment, as JSON."""


def private_paths(environment: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The paths that jobs may never read: the folder of the connection files, and the files with secrets.

    They include those of the parent programs, whose variables `environment` may lack.
    """
    inherited = map(Path, json.loads(environment.get(PRIVATE_PATHS) or "[]"))
    found = (connection_folder(environment), *secret_files(environment), *inherited)
    return tuple(dict.fromkeys(path.absolute() for path in found))


def connection_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder in which each `rolecall local` stores its address and token for the other commands."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base, "rolecall")


def connection_file(data: str) -> Path:
    """The file of the `rolecall local` with the data folder `data`."""
    return connection_folder() / f"local-{sha256(os.fsencode(data)).hexdigest()[:16]}.json"


def connection_files() -> list[Path]:
    """The files of all clusters, also of those that were killed, and `local.json` of earlier releases."""
    return [path for path in connection_folder().glob("local*.json") if path.is_file()]


def readable_secret_files(*others: Path) -> tuple[Path, ...]:
    """The files with secrets that every user of this system can read.

    Examines the files that the environment names, the connection files, and `others`.
    """
    known = dict.fromkeys((*private_paths(), *connection_files(), *others))
    return tuple(path for path in known if _is_world_readable(path))


def _is_world_readable(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)
