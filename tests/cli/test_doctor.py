"""`rolecall doctor` against real masters: what goes wrong on its way is a finding with a remedy, never a traceback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import ROLECALL, TOKEN, Cluster

URL = {"ROLECALL_TOKEN": TOKEN}


def doctor(environment: dict[str, str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Its exit code and its findings."""
    done = subprocess.run(
        [*ROLECALL, "doctor", "--json", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def errors(findings: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Whom and what the errors are about; each has a remedy."""
    bad = [finding for finding in findings if finding["level"] == "error"]
    assert all(finding["remedy"] for finding in bad)
    return {(finding["nodes"][0], finding["check"]) for finding in bad}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_master_that_does_not_answer() -> None:
    code, findings = doctor({"ROLECALL_TOKEN": TOKEN, "ROLECALL_URL": f"http://127.0.0.1:{free_port()}"})
    assert code == 1
    assert errors(findings) == {("this shell", "master")}


def test_a_master_whose_name_is_misspelt() -> None:
    code, findings = doctor({"ROLECALL_TOKEN": TOKEN, "ROLECALL_URL": "http://no-such-host.invalid:8080"})
    assert code == 1
    assert ("this shell", "name") in errors(findings)


def test_no_token(tmp_path: Path) -> None:
    nothing = {"ROLECALL_TOKEN": "", "ROLECALL_URL": "http://127.0.0.1:9", "XDG_CONFIG_HOME": str(tmp_path)}
    code, findings = doctor(nothing)
    assert code == 1
    assert errors(findings) == {("this shell", "token")}


def test_a_wrong_token(cluster: Cluster) -> None:
    code, findings = doctor(cluster.environment | {"ROLECALL_TOKEN": "a-wrong-token-for-sure"})
    assert code == 1
    assert errors(findings) == {("this shell", "token")}


def test_a_program_that_is_no_master() -> None:
    script = "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.BaseHTTPRequestHandler); "
    script += "print(s.server_port, flush=True); s.serve_forever()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:
        try:
            assert other.stdout
            code, findings = doctor(URL | {"ROLECALL_URL": f"http://127.0.0.1:{other.stdout.readline().strip()}"})
        finally:
            other.kill()
    assert code == 1
    assert errors(findings) == {("this shell", "master")}


def test_a_cluster_without_nodes(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{(port := free_port())}"
    own = {"ROLECALL_NODE_TOKEN": "the-nodes-token-of-the-tests", "ROLECALL_DATA": str(tmp_path)}
    own |= {"ROLECALL_PORT": str(port), "ROLECALL_HOST": "127.0.0.1", "ROLECALL_TOKEN": TOKEN}
    command = [sys.executable, "-m", "rolecall", "master"]
    with subprocess.Popen(command, env=os.environ | own, stderr=subprocess.DEVNULL) as master:
        try:
            _await(lambda: _answers(url))
            code, findings = doctor(URL | {"ROLECALL_URL": url})
        finally:
            master.terminate()
    assert code == 1
    assert errors(findings) == {("the master", "nodes")}


@pytest.mark.slow
def test_a_healthy_cluster_is_found_healthy(cluster: Cluster) -> None:
    code, findings = doctor(cluster.environment)
    assert (code, errors(findings)) == (0, set())
    nodes = set(cluster.pids) - {"master"}
    assert {finding["nodes"][0] for finding in findings if finding["check"] == "disk"} == nodes
    assert {name for finding in findings if finding["check"] == "ping" for name in finding["nodes"]} == nodes


@pytest.mark.slow
def test_what_is_well_is_told_in_short_or_in_full(cluster: Cluster) -> None:
    short, full = (
        subprocess.check_output([*ROLECALL, "doctor", *options], env=cluster.environment, text=True).splitlines()
        for options in ([], ["--all"])
    )
    nodes = len(cluster.pids) - 1
    assert [line.split()[:4] for line in short if " disk " in line] == [[f"{nodes}", "nodes", "disk", "ok"]]
    assert [line.split()[1] for line in short if " ping " in line] == ["pairs"]
    assert sum(" disk " in line for line in full) == nodes
    assert sum(" ping " in line for line in full) == nodes * (nodes - 1) // 2
    assert short[-1] == full[-1], "the sums count all"


@pytest.mark.slow
def test_nodes_may_be_chosen_and_misspelt(cluster: Cluster) -> None:
    code, findings = doctor(cluster.environment, "trainer-0", "trainr-1")
    assert code == 1
    assert errors(findings) == {("trainr-1", "nodes")}
    assert "trainer-1" in next(one["message"] for one in findings if one["nodes"] == ["trainr-1"])
    assert {finding["nodes"][0] for finding in findings if finding["check"] == "disk"} == {"trainer-0"}


@pytest.mark.slow
def test_ctrl_c_takes_the_job_along(cluster: Cluster) -> None:
    command = [*ROLECALL, "doctor"]
    with subprocess.Popen(command, env=cluster.environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr
        job = process.stderr.readline().split()[-1]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    cluster.wait_for(job, "cancelled", 40)


@pytest.mark.slow
def test_a_lost_node_is_named_and_the_others_are_examined(start_cluster: Callable[..., Cluster]) -> None:
    cluster = start_cluster("--trainers", "1", environment={"ROLECALL_NODE_TIMEOUT_S": "2"})
    os.kill(cluster.pids["trainer-0"], signal.SIGSTOP)
    try:
        _await(lambda: not _alive(cluster, "trainer-0"))
        code, findings = doctor(cluster.environment)
    finally:
        os.kill(cluster.pids["trainer-0"], signal.SIGCONT)
    assert code == 1
    assert errors(findings) == {("trainer-0", "alive")}
    assert [one["nodes"] for one in findings if one["check"] == "ping"] == [["master-0", "parameter-server-0"]]


def _alive(cluster: Cluster, name: str) -> bool:
    nodes = cluster.client.get("/nodes").json()["nodes"]
    return next(node["alive"] for node in nodes if node["spec"]["name"] == name)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False


def _await(condition: Callable[[], bool], timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
