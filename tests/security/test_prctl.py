"""Programs whose container forbids prctl(2): without its protection, they don't start."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ROLECALL
from tests.security.forbidding import FORBIDDING, PRCTL

# The filter outlives the `exec`.
WITHOUT_PRCTL = f"""
import os, sys
{FORBIDDING}
forbid({PRCTL}, {errno.EPERM})
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
REMEDY = "Operation not permitted; allow prctl in the seccomp profile of the container"


def run_without_prctl(*arguments: str, fd: int = -1) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments where prctl fails."""
    command = [sys.executable, "-c", WITHOUT_PRCTL, *arguments]
    given = () if fd < 0 else (fd,)
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, pass_fds=given)


@pytest.mark.parametrize("program", [[], ["master"], ["node"]], ids=["container", "master", "node"])
def test_a_program_that_can_not_hide_its_secrets_does_not_start(program: list[str]) -> None:
    done = run_without_prctl("-m", "rolecall", *program)
    assert (done.returncode, done.stdout) == (os.EX_CONFIG, "")
    assert done.stderr == f"rolecall: prctl(PR_SET_DUMPABLE): {REMEDY}\n"


@pytest.mark.slow
def test_a_local_cluster_that_can_not_hide_its_secrets_does_not_start(tmp_path: Path) -> None:
    done = run_without_prctl(*ROLECALL[1:], "local", "--data", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"rolecall: prctl(PR_SET_DUMPABLE): {REMEDY}\n"
    assert not (tmp_path / "data").exists()


def test_a_fork_server_that_would_outlive_its_node_does_not_start() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        done = run_without_prctl("-m", "rolecall.worker.fork_server", str(theirs.fileno()), fd=theirs.fileno())
        theirs.close()
        assert ours.recv(1) == b"", "it is not ready"
    assert done.returncode == os.EX_CONFIG
    (line,) = done.stderr.splitlines()
    assert f"prctl(PR_SET_PDEATHSIG): {REMEDY}" in line
