"""`rolecall tokens` and `rolecall audit` against a real master."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.conftest import TOKEN
from tests.ports import free_port
from typer.testing import CliRunner

from rolecall.cli.app import app
from rolecall.cli.exits import CommandError, exit_code
from rolecall.client import ClientError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A function that runs a command against a master without nodes. It returns exit code, stdout and error."""
    port = free_port()
    own = {"ROLECALL_TOKEN": TOKEN, "ROLECALL_NODE_TOKEN": "the-nodes-token-of-the-tests"}
    own |= {"ROLECALL_DATA": str(tmp_path), "ROLECALL_PORT": str(port), "ROLECALL_HOST": "127.0.0.1"}
    command = [sys.executable, "-m", "rolecall", "master"]
    url = f"http://127.0.0.1:{port}"

    def run(*arguments: str, token: str = TOKEN, given: str = "") -> tuple[int, str, str]:
        done = CliRunner().invoke(app, arguments, input=given, env={"ROLECALL_URL": url, "ROLECALL_TOKEN": token})
        if isinstance(done.exception, CommandError | ClientError):
            return exit_code(done.exception), done.stdout, str(done.exception)
        return done.exit_code, done.stdout, done.stderr

    with subprocess.Popen(command, env=os.environ | own, stderr=subprocess.DEVNULL) as master:
        try:
            deadline = time.monotonic() + 60
            while not _answers(url):
                assert master.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield run
        finally:
            master.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_tokens_are_created_used_rotated_and_revoked(run: Run) -> None:
    code, printed, said = run(
        "tokens", "create", "alice", "--scope", "submit", "--max-queued", "1", "--expires-in", "1d"
    )
    assert (code, "shown only once" in said) == (0, True)
    secret = printed.strip()
    assert secret.startswith("rc_")
    data = {"train": "none.csv", "label": "y", "categorical": ["a"]}
    job = json.dumps({"workload": "embedding-ddp", "params": {"data": data}})
    code, printed, said = run("submit", "-", given=job, token=secret)
    assert code == 0, said
    number = printed.strip()
    assert "alice" in run("show", number)[1]
    assert number in run("jobs", "--owner", "alice")[1]
    assert number not in run("jobs", "--owner", "bob")[1]
    code, _, said = run("submit", "-", given=job, token=secret)
    assert (code, "max_queued is 1" in said) == (5, True)
    code, _, said = run("tokens", "list", token=secret)
    assert (code, "needs the scope admin" in said) == (7, True)
    assert run("cancel", number, token=secret)[0] == 0
    assert "scopes submit; no limits" in run("tokens", "update", "alice", "--max-queued", "none")[1]
    fresh = run("tokens", "rotate", "alice", "--overlap", "1h")[1].strip()
    assert [run("jobs", token=one)[0] for one in (secret, fresh)] == [0, 0]
    (row,) = [line for line in run("tokens", "list")[1].splitlines() if line.startswith("alice")]
    assert row.split()[1:3] == ["submit", "2"]
    assert run("tokens", "revoke", "alice")[0] == 0
    assert run("jobs", token=fresh)[0] == 7
    assert run("tokens", "create", "ci", "--scope", "read")[0] == 0
    log = run("audit")[1]
    assert run("audit", "--since", "1h")[1] == log
    assert "--since" in run("audit", "--since", "soon")[2]
    entries = json.loads(run("audit", "--limit", "300", "--json")[1])
    assert [one["id"] for one in entries["entries"]] == list(range(len(entries["entries"]), 0, -1))
    assert all(action in log for action in ("DELETE /tokens/{name}", "POST /jobs/{job}/cancel", "POST /jobs"))
    assert "max_stored_bytes 50.0 GiB" in run("tokens", "update", "ci", "--max-stored-bytes", "50GiB")[1]
    assert "max_priority -5" in run("tokens", "update", "ci", "--max-priority", "-5")[1]
    for option, value in (
        ("--max-slots", "4GiB"),
        ("--max-slots", "-1"),
        ("--max-stored-bytes", "much"),
        ("--max-priority", "101"),
    ):
        code, _, said = run("tokens", "update", "ci", option, value)
        assert (code, option in said, f"'{value}' is neither" in said) == (2, True, True)
    assert "--overlap" in run("tokens", "rotate", "ci", "--overlap", "24")[2]
    for wrong in (("create", "bob", "--scope", "root"), ("rotate", "bob", "--overlap", "1y"), ("update", "bob")):
        assert run("tokens", *wrong)[0] == 2
