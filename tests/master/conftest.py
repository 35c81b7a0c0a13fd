"""Fixtures: a private PostgreSQL."""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not found:
        pytest.skip("PostgreSQL is not installed: there is no /usr/lib/postgresql/*/bin (apt-get install postgresql)")
    return found[-1].parent


def _account() -> dict[str, object]:
    """PostgreSQL refuses to run as root: then it runs as `postgres` or `nobody`."""
    if os.getuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = known.get("postgres") or known["nobody"]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a real server of our own, with an empty database; gone after the tests."""
    binaries, account = _binaries(), _account()
    folder = Path(mkdtemp(prefix="rolecall-postgres-", dir="/tmp"))
    if account:
        shutil.chown(folder, account["user"], account["group"])  # type: ignore[call-overload]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"

    def run(*command: str | Path) -> None:
        # Its output goes nowhere: the server inherits a pipe and would keep it open.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
        subprocess.run(command, check=True, **quiet, **account)  # type: ignore[call-overload]

    control = [binaries / "pg_ctl", "-D", folder / "data", "-w"]
    try:
        run(binaries / "initdb", "-D", folder / "data", "-U", "test", "-A", "trust")
        run(*control, "-o", options, "-l", folder / "log", "start")
        try:
            yield f"postgresql://test@127.0.0.1:{port}/postgres"
        finally:
            run(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
