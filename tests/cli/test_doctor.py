# pyright: standard
"""`rolecall doctor` with real masters and fake ones. Every error is a finding with a remedy, never a traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from tests.conftest import ROLECALL, TOKEN, Cluster
from tests.master.harness import alive, make_node, make_token, on_master, one_trainer
from tests.node.harness import ScriptedMaster
from tests.node.test_self_check import self_check
from tests.ports import free_port
from typer.testing import CliRunner

from rolecall import __version__, landlock
from rolecall.cli import doctor as command
from rolecall.cli.app import app
from rolecall.client import Client
from rolecall.spec.access import Scope
from rolecall.spec.api import Volume
from rolecall.spec.finding import Level, NodeFinding
from rolecall.spec.job import JobDocument
from rolecall.spec.role import Role

from .command import run, run_at, run_with

URL = {"ROLECALL_TOKEN": TOKEN}


def doctor(environment: dict[str, str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit code and the findings of the command."""
    done = run("doctor", "--json", *arguments, **environment)
    return done.code, json.loads(done.out)


def errors(findings: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Subject and check of each error, all of which must have remedies."""
    bad = [finding for finding in findings if finding["level"] == "error"]
    assert all(finding["remedy"] for finding in bad)
    return {(finding["nodes"][0], finding["check"]) for finding in bad}


def test_a_master_that_does_not_answer() -> None:
    code, findings = doctor({"ROLECALL_TOKEN": TOKEN, "ROLECALL_URL": f"http://127.0.0.1:{free_port()}"})
    assert code == 1
    assert errors(findings) == {("this shell", "master")}
    assert "start the master (here: `rolecall local`)" in findings[-1]["remedy"]


def test_a_master_whose_name_does_not_resolve() -> None:
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


@pytest.mark.slow
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


@dataclass
class FakeMaster:
    """A server with scripted responses. It repeats the last response of each path."""

    answers: dict[str, list[tuple[int, Any]]]
    calls: list[str] = field(default_factory=list)

    @contextmanager
    def serving(self) -> Generator[str]:
        """Run the server until the block ends. Yields its URL."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                call = f"{self.command} {self.path.partition('?')[0]}"
                fake.calls.append(call)
                answers = fake.answers[call]
                status, body = answers.pop(0) if len(answers) > 1 else answers[0]
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            do_POST = do_DELETE = do_GET  # noqa: N815 - the library's names

            def log_message(self, format: str, *args: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


HEALTHY = {
    "GET /healthz": [(200, {"status": "ok"})],
    "GET /readyz": [(200, {"status": "ready", "volume": {"free": 1 << 40, "total": 1 << 40, "reserve": 1 << 30}})],
    "GET /openapi.json": [(200, {"info": {"version": __version__}})],
    "GET /findings": [(200, {"findings": []})],
    "GET /jobs": [(200, {"jobs": [], "next_cursor": None})],
    "DELETE /jobs/j1": [(204, None)],
    "GET /nodes": [(200, {"nodes": [alive(make_node("trainer-0", Role.TRAINER)).model_dump(mode="json")]})],
}


def error_response(status: int, detail: str) -> list[tuple[int, Any]]:
    """The scripted response of a master with an internal error."""
    return [(status, {"status": status, "title": "error", "detail": detail})]


def job_as(state: str, **values: Any) -> dict[str, Any]:
    """The document of the preflight job."""
    nothing = dict.fromkeys(("reason", "waiting_for", "deadline_s", "result", "started_at", "ended_at"))
    fixed = {"id": "j1", "name": "j", "workload": "preflight", "params": {"nodes": []}, "roles": {}, "priority": 0}
    fixed |= {"max_restarts": 0, "progress": {}, "attempts": [], "created_at": "2026-01-01T00:00:00Z"}
    return nothing | fixed | {"state": state} | values


def event(number: int, message: str) -> dict[str, Any]:
    return {"id": number, "at": "2026-01-01T00:00:00Z", "attempt": 1, "kind": "event", "message": message}


@pytest.mark.slow
@pytest.mark.parametrize(("free", "level"), [(9, "error"), (19, "warning"), (21, "ok")])
def test_a_master_that_runs_out_of_space_is_reported(free: int, level: str) -> None:
    volume = {"free": free, "total": 100, "reserve": 10}
    answers = HEALTHY | {
        "GET /readyz": [(200, {"status": "ready", "volume": volume})],
        "POST /jobs": error_response(422, "there is no workload 'preflight'"),
    }
    with FakeMaster(answers).serving() as url:
        _, findings = doctor(URL | {"ROLECALL_URL": url})
    (found,) = [one for one in findings if one["check"] == "disk"]
    assert (found["nodes"], found["level"]) == (["the master"], level)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/readyz", "/nodes"])
def test_a_master_with_storage_errors_is_not_reported_as_down(path: str) -> None:
    answers = HEALTHY | {f"GET {path}": error_response(503, "the database does not answer: no such host")}
    with FakeMaster(answers).serving() as url:
        code, findings = doctor(URL | {"ROLECALL_URL": url})
    assert code == 1
    assert errors(findings) == {("the master", "master")}
    assert findings[-1]["message"] == "the database does not answer: no such host"
    assert "ROLECALL_DATABASE_URL" in findings[-1]["remedy"]
    assert "log" in findings[-1]["remedy"]
    assert "start it" not in findings[-1]["remedy"]


def test_a_proxy_without_a_master_is_reported_as_a_master_that_is_down() -> None:
    with FakeMaster({"GET /healthz": [(502, {})]}).serving() as url:
        _, findings = doctor(URL | {"ROLECALL_URL": url})
    assert errors(findings) == {("this shell", "master")}
    assert "start the master" in findings[-1]["remedy"]


@pytest.mark.slow
def test_the_last_event_is_printed_before_the_outcome() -> None:
    """The job logs another event and ends between two polls."""
    result = {"findings": []}
    answers = HEALTHY | {
        "POST /jobs": [(201, job_as("queued"))],
        "GET /jobs/j1": [(200, job_as("running")), (200, job_as("succeeded", result=result))],
        "GET /jobs/j1/events": [
            (200, {"events": [event(1, "the first of all")]}),
            (200, {"events": [event(2, "the last of all")]}),
        ],
    }
    with (fake := FakeMaster(answers)).serving() as url:
        done = subprocess.run(
            [*ROLECALL, "doctor"],
            env=os.environ | URL | {"ROLECALL_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert "the first of all" in done.stderr
    assert "the last of all" in done.stderr
    assert [call.split("/")[-1] for call in fake.calls if call.startswith("GET /jobs/")] == ["j1", "events"] * 2


async def test_the_weak_settings_of_a_master_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "node-token"
    secret.write_text("secret")
    secret.chmod(0o644)
    monkeypatch.setenv("ROLECALL_NODE_TOKEN_FILE", str(secret))
    async with on_master(tmp_path) as master:
        database = tmp_path / "rolecall.db"
        database.chmod(0o604)
        done = await run_at(master, "doctor", "--json")
    found = [one for one in json.loads(done.out) if one["level"] == "warning"]
    assert {tuple(one["nodes"]) for one in found} == {("the master",)}
    assert [one["check"] for one in found] == ["tokens", "tokens", "metrics token", "secret files", "retention"]
    files = next(one for one in found if one["check"] == "secret files")
    assert files["message"].endswith(f": {secret}, {database}")
    assert all(one["remedy"] for one in found)


async def test_a_node_without_landlock_is_shown_by_doctor_and_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landlock, "_CREATE_RULESET", 0xFFFF)  # No system call has this number.
    monkeypatch.setenv("ROLECALL_SANDBOX", "auto")
    async with self_check(ScriptedMaster(), tmp_path / "node") as check:
        found, _ = await check.run(make_node("trainer-0", Role.TRAINER))
    async with on_master(tmp_path) as master:
        node = await one_trainer(master)
        node.findings, node.draining = found, True  # The network of a draining node is not tested.
        await node.beat()
        doctor, nodes = await run_at(master, "doctor"), await run_at(master, "nodes")
    assert re.search(
        r"warning +trainer-0, sandbox: its kernel has no Landlock, .* not confined; remedy: run a kernel", doctor.out
    )
    assert "warning trainer-0: its kernel has no Landlock, so its workers are not confined; run a kernel" in nodes.out


async def test_what_only_admins_can_examine_is_said_to_others(tmp_path: Path) -> None:
    async with on_master(tmp_path) as master:
        secret = await make_token(master, "alice", Scope.SUBMIT)
        done = await run_at(master, "doctor", "--json", "--token", secret)
    (found,) = [one for one in json.loads(done.out) if one["level"] == "warning"]
    assert (found["nodes"], found["check"]) == (["the master"], "settings")
    assert "not examined" in found["message"]
    assert "admin" in found["remedy"]


def test_a_network_test_that_another_user_cancelled_is_not_a_timeout() -> None:
    answers = HEALTHY | {
        "POST /jobs": [(201, job_as("queued"))],
        "GET /jobs/j1": [(200, job_as("cancelled", reason="cancelled by a user"))],
        "GET /jobs/j1/events": [(200, {"events": []})],
    }
    with FakeMaster(answers).serving() as url:
        code, findings = doctor(URL | {"ROLECALL_URL": url})
    assert code == 1
    assert errors(findings) == {("trainer-0", "preflight")}
    assert findings[-1]["message"] == "another user cancelled the preflight job j1"


def test_a_network_test_that_takes_too_long_is_cancelled_and_reported_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "WAIT_S", 0.1)
    answers = HEALTHY | {
        "POST /jobs": [(201, job_as("queued"))],
        "GET /jobs/j1": [(200, job_as("queued", waiting_for="waiting for a node"))],
        "GET /jobs/j1/events": [(200, {"events": []})],
        "POST /jobs/j1/cancel": [(200, job_as("cancelled"))],
    }
    with (fake := FakeMaster(answers)).serving() as url:
        done = CliRunner().invoke(app, ["doctor", "--json", "--url", url], env={"ROLECALL_TOKEN": TOKEN})
    findings = json.loads(done.stdout)
    assert done.exit_code == 1
    assert findings[-1]["message"] == "the preflight job did not end within 0 s: waiting for a node"
    assert "POST /jobs/j1/cancel" in fake.calls
    assert "DELETE /jobs/j1" in fake.calls, "it has no log"


def test_a_network_test_that_failed_stays_with_its_log() -> None:
    attempt = {"number": 1, "state": "failed", "cause": "it broke", "stop": None, "workers": []}
    attempt |= {"started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}
    answers = HEALTHY | {
        "POST /jobs": [(201, job_as("queued"))],
        "GET /jobs/j1": [(200, job_as("failed", reason="it broke", attempts=[attempt]))],
        "GET /jobs/j1/events": [(200, {"events": []})],
    }
    with (fake := FakeMaster(answers)).serving() as url:
        _, findings = doctor(URL | {"ROLECALL_URL": url})
    assert findings[-1]["remedy"] == "see its log: rolecall logs j1; then delete it: rolecall delete j1"
    assert "DELETE /jobs/j1" not in fake.calls


def test_a_network_test_replaces_older_ones_of_its_nodes() -> None:
    """The newest one stays, because the master reads the findings about a node from it."""
    result = {"findings": []}
    older, other, whole, named = ("j0", ["a"]), ("j9", ["a", "c"]), ("j8", []), ("j7", ["a"])
    found = (older, other, whole, named)
    names = dict.fromkeys(["j0", "j9", "j8"], "rolecall doctor") | {"j7": "Weekly Rolecall Doctor"}
    listed = [job_as("succeeded", id=job, name=names[job]) for job, _ in found]
    answers = HEALTHY | {
        "POST /jobs": [(201, job_as("queued"))],
        "GET /jobs": [(200, {"jobs": listed, "next_cursor": None})],
        "GET /jobs/j1": [(200, job_as("succeeded", result=result, params={"nodes": ["a", "b"]}))],
        "GET /jobs/j1/events": [(200, {"events": []})],
        "DELETE /jobs/j0": [(204, None)],
    }
    for job, on in found:
        answers[f"GET /jobs/{job}"] = [(200, job_as("succeeded", id=job, params={"nodes": on}))]
    with (fake := FakeMaster(answers)).serving() as url:
        code, _ = doctor(URL | {"ROLECALL_URL": url})
    assert code == 0
    assert [call for call in fake.calls if call.startswith("DELETE")] == ["DELETE /jobs/j0"]


def test_a_healthy_cluster_has_no_errors(cluster: Cluster) -> None:
    code, findings = doctor(cluster.environment)
    assert (code, errors(findings)) == (0, set())
    nodes = set(cluster.pids) - {"master"}
    assert {finding["nodes"][0] for finding in findings if finding["check"] == "clock"} == nodes
    assert {name for finding in findings if finding["check"] == "ping" for name in finding["nodes"]} == nodes


def test_ok_findings_are_grouped_unless_all_are_requested(cluster: Cluster) -> None:
    short, full = (
        subprocess.check_output([*ROLECALL, "doctor", *options], env=cluster.environment, text=True).splitlines()
        for options in ([], ["--all"])
    )
    nodes = len(cluster.pids) - 1
    # Of a node's own findings, only `clock` is ok on every test machine: for example, a disk can be full.
    assert [line.split()[:3] for line in short if " clock," in line] == [["ok", f"{nodes}", "nodes:"]]
    assert [line.split()[2] for line in short if " ping," in line] == ["pairs:"]
    assert sum(", clock: " in line for line in full) == nodes
    assert sum(", ping: " in line for line in full) == nodes * (nodes - 1) // 2
    assert len(short) < len(full) / 2
    assert short[-1] == f"{full[-1]}; --all shows each", "the sums count all"


def test_what_passed_is_summarized_by_subject() -> None:
    findings = [
        *(NodeFinding(nodes=("the master",), check=check, level=Level.OK, message="") for check in ("disk", "token")),
        NodeFinding(nodes=("the master",), check="retention", level=Level.WARNING, message=""),
        *(NodeFinding(nodes=(name,), check="clock", level=Level.OK, message="") for name in "abc"),
        *(NodeFinding(nodes=(name,), check="gpus", level=Level.OK, message="") for name in "ab"),
        *(NodeFinding(nodes=(name,), check="shm", level=Level.OK, message="") for name in "abc"),
        NodeFinding(nodes=("a",), check="disk", level=Level.OK, message=""),
        NodeFinding(nodes=("b",), check="disk", level=Level.ERROR, message=""),
        *(NodeFinding(nodes=pair, check="reach", level=Level.OK, message="") for pair in (("a", "b"), ("b", "c"))),
        NodeFinding(nodes=("a", "b", "c"), check="torch", level=Level.OK, message=""),
    ]
    assert dict(command.passed(findings)) == {
        "the master": ["disk", "token"],
        "3 nodes": ["clock", "shm", "torch"],
        "2 nodes": ["gpus"],
        "a": ["disk"],
        "2 pairs": ["reach"],
    }


def test_nodes_can_be_selected_and_unknown_names_are_errors(cluster: Cluster) -> None:
    code, findings = doctor(cluster.environment, "trainer-0", "trainr-1")
    assert code == 1
    assert errors(findings) == {("trainr-1", "nodes")}
    assert "trainer-1" in next(one["message"] for one in findings if one["nodes"] == ["trainr-1"])
    assert {finding["nodes"][0] for finding in findings if finding["check"] == "clock"} == {"trainer-0"}


def test_only_the_newest_job_stays(cluster: Cluster) -> None:
    doctor(cluster.environment, "trainer-0", "trainer-1")
    doctor(cluster.environment)
    listed = cluster.client.get("/jobs", params={"workload": "preflight", "name": "rolecall doctor"}).json()["jobs"]
    assert [job["state"] for job in listed] == ["succeeded"]
    assert cluster.client.get("/nodes/trainer-0/preflight").json()["network"]["job"] == listed[0]["id"]


def test_ctrl_c_cancels_and_deletes_the_job(cluster: Cluster) -> None:
    command = [*ROLECALL, "doctor"]
    with subprocess.Popen(command, env=cluster.environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr
        job = process.stderr.readline().split()[-1]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert f"job {job} is cancelled and deleted" in process.stderr.read()
    _await(lambda: cluster.client.get(f"/jobs/{job}").status_code == 404, 40)


def test_ctrl_c_while_the_job_is_submitted_deletes_it(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, jobs, interrupts = Client.submit, set[str](), [KeyboardInterrupt]

    def interrupted(client: Client, *arguments: Any) -> JobDocument:
        job = submit(client, *arguments)
        jobs.add(job.id)
        if interrupts:
            raise interrupts.pop()
        return job

    monkeypatch.setattr(Client, "submit", interrupted)
    done = run_with(cluster, "doctor")
    (job,) = jobs
    assert f"job {job} is cancelled and deleted" in done.err
    _await(lambda: cluster.client.get(f"/jobs/{job}").status_code == 404, 40)


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
        assert time.monotonic() < deadline, "timeout"
        time.sleep(0.05)


@pytest.mark.parametrize(("free", "level"), [(1, Level.ERROR), (3, Level.WARNING), (5, Level.OK)])
def test_little_space_leads_to_the_data_folder_also_of_a_local_cluster(free: int, level: Level) -> None:
    finding = command._disk(Volume(free=free << 30, total=9 << 30, reserve=2 << 30))
    assert finding.level is level
    assert f"the data folder has {free}.0 GiB of 9.0 GiB free" in finding.message
    assert ("(ROLECALL_DATA; --data of `rolecall local`)" in finding.remedy) is (level is not Level.OK)
