"""No other process of the same user may look into our programs' memory and environment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from tests.node.harness import ROOT
from tests.prerequisites import require_programs

from rolecall.__main__ import programs
from rolecall.cli.local import cluster
from rolecall.client.connection import Connection
from rolecall.spec.role import Role

# Root may look into everything; without these capabilities it is a user like any other.
LIMITED = ["setpriv", "--bounding-set", "-sys_ptrace,-sys_admin,-perfmon"] if os.getuid() == 0 else []
READ = "import sys; sys.stdout.write(open(f'/proc/{sys.argv[1]}/environ').read())"


@pytest.mark.slow
def test_the_environment_of_master_node_and_supervisor_is_hidden(tmp_path: Path) -> None:
    if LIMITED:
        require_programs("setpriv")
    secrets = {"ROLECALL_TOKEN": "planted-users-token", "ROLECALL_NODE_TOKEN": "planted-nodes-token"}
    ports = {"ROLECALL_HOST": "127.0.0.1", "ROLECALL_PORT": "18431", "ROLECALL_METRICS_PORT": "0"}
    environment = {**os.environ, "ROLE": "master", "ROLECALL_DATA": str(tmp_path), **secrets, **ports}
    command = [*LIMITED, sys.executable, "-m", "rolecall"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL) as supervisor:
        try:
            _await_up("http://127.0.0.1:18431/healthz")
            _await_up_node(tmp_path)
            children = {child.pid: child for child in psutil.Process(supervisor.pid).children()}
            assert sorted(child.cmdline()[-1] for child in children.values()) == ["master", "node"]
            for pid in (supervisor.pid, *children):
                looked = subprocess.run(
                    [*LIMITED, sys.executable, "-c", READ, str(pid)], capture_output=True, text=True, check=False
                )
                assert "PermissionError" in looked.stderr
                assert "planted" not in looked.stdout
        finally:
            supervisor.send_signal(signal.SIGTERM)


def test_nodes_get_no_secret_of_the_control_programs_own(tmp_path: Path) -> None:
    shared = {"ROLE": "master", "ROLECALL_NODE_TOKEN": "n", "ROLECALL_METRICS_TOKEN_FILE": "/m"}
    own = {"ROLECALL_TOKEN": "t", "ROLECALL_DATABASE_URL": "u", "ROLECALL_DATABASE_URL_FILE": "/u"}
    control, node = programs({**shared, **own, "ROLECALL_TOKEN_FILE": "/t"})
    assert control.environment == {**shared, **own, "ROLECALL_TOKEN_FILE": "/t"}
    paths = node.environment["ROLECALL_PRIVATE_PATHS"]
    assert node.environment == shared | {"ROLECALL_PRIVATE_PATHS": paths}
    assert {"/m", "/t", "/u"} < set(json.loads(paths)), "closed to jobs"
    local, *nodes = cluster(Connection("http://127.0.0.1:1", "t"), tmp_path, {Role.TRAINER: 1}, shared | own)
    assert own.items() <= local.environment.items()
    assert str(tmp_path / "token") in json.loads(local.environment["ROLECALL_PRIVATE_PATHS"]), "as examined by doctor"
    assert not own.keys() & nodes[0].environment.keys()


def test_what_hides_a_process() -> None:
    """Without the protection, the test above would fail."""
    hiding = "import sys; from rolecall.process import forbid_inspection as f; sys.argv[1:] and f(); print(); input()"
    for arguments, expected in (([], 0), (["hide"], 1)):
        with subprocess.Popen(
            [*LIMITED, sys.executable, "-c", hiding, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        ) as process:
            assert process.stdout
            process.stdout.readline()
            looked = subprocess.run(
                [*LIMITED, sys.executable, "-c", READ, str(process.pid)], capture_output=True, check=False
            )
            assert looked.returncode == expected
            process.communicate(b"\n")


def _await_up(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(url).raise_for_status()
            return
        except httpx.HTTPError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _await_up_node(data: Path) -> None:
    deadline = time.monotonic() + 60
    while not list(data.glob("nodes/*/node.lock")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
