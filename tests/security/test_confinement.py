"""A job on a real cluster whose code looks for what it should not have, and another process next to it."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.jobs import long_job, past_step, short_job
from tests.conftest import Cluster, running_cluster
from tests.prerequisites import require_landlock, unavailable

from rolecall import landlock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
THIEF = """
import os, sys
from pathlib import Path
from torch import nn

def attempt(name, act):
    try:
        act()
        print("STOLEN", name, flush=True)
    except OSError as error:
        print("refused", name, type(error).__name__, flush=True)

def steal(inputs, data, node):
    attempt("database", lambda: Path(data, "master/rolecall.db").read_bytes())
    attempt("token", lambda: Path(data, "token").read_bytes())
    attempt("environment", lambda: Path(f"/proc/{node}/environ").read_bytes())
    attempt("memory", lambda: open(f"/proc/{node}/mem", "rb"))
    attempt("work", lambda: list(Path(data, "nodes/parameter-server-0").iterdir()) and
            Path(data, "nodes/parameter-server-0/node.lock").read_text())
    attempt("blobs", lambda: Path(data, "master/blobs", "x").write_text("x"))
    attempt("kill", lambda: os.kill(node, 0))
    return nn.Sequential(nn.Linear(inputs, 4), nn.Linear(4, 1))

def blunder(inputs):
    Path(__file__).with_name("made-by-a-job").write_text("x")
"""
# A workload whose driver is a thief, too: those of Rolecall run no code of a job in it.
DRIVER = """
from pydantic import BaseModel
from rolecall.kit import Role, RoleCount, Workload

class Params(BaseModel):
    data: str
    node: int

WORKLOAD = Workload(
    name="theft", summary="a driver that steals", package=__name__, params=Params,
    roles={Role.MASTER: RoleCount(default=1, least=1, most=1)},
)
"""
DRIVER_RUN = """
from thief import steal

def run(context):
    steal(1, context.params.data, context.params.node)
    context.report.result({})
"""


def _write_plugins(folder: Path) -> None:
    """The thieves: a builder, and a workload as a package that is installed."""
    files = {
        "thief.py": THIEF,
        "theft/__init__.py": DRIVER,
        "theft/master.py": DRIVER_RUN,
        "theft-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: theft\nVersion: 1\n",
        "theft-1.dist-info/entry_points.txt": "[rolecall.workloads]\ntheft = theft:WORKLOAD\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


@pytest.fixture(scope="module")
def suspicious(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a plug-in of a thief."""
    require_landlock()
    plugins = tmp_path_factory.mktemp("plugins")
    _write_plugins(plugins)
    folder = tmp_path_factory.mktemp("suspicious")
    installed = f"{plugins}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    environment = {"ROLECALL_PLUGINS": str(plugins), "PYTHONPATH": installed}
    with running_cluster(folder, "--trainers", "1", environment=environment) as started:
        yield started


def with_model(body: dict[str, Any], **model: Any) -> dict[str, Any]:
    del body["params"]["hidden"]
    body["params"]["model"] = model
    return body


def by_a_trainer(rows: Path, given: dict[str, Any]) -> dict[str, Any]:
    return with_model(short_job(rows, trainers=1, epochs=1), builder="thief:steal", arguments=given)


def by_the_driver(_: Path, given: dict[str, Any]) -> dict[str, Any]:
    return {"workload": "theft", "params": given}


@pytest.mark.parametrize(("theft", "node"), [(by_a_trainer, "trainer-0"), (by_the_driver, "master-0")])
def test_a_job_s_code_gets_at_nothing_of_the_cluster(
    suspicious: Cluster, rows: Path, theft: Callable[[Path, dict[str, Any]], dict[str, Any]], node: str
) -> None:
    body = theft(rows, {"data": str(suspicious.data), "node": suspicious.pid(node)})
    document = suspicious.wait_for(suspicious.submit(body), "succeeded", 120)
    log = suspicious.client.get(f"/jobs/{document['id']}/logs").text
    refused = {line.split("refused ")[1].split()[0] for line in log.splitlines() if "refused " in line}
    assert "STOLEN" not in log
    assert {"database", "token", "environment", "memory", "work", "blobs"} <= refused
    assert "kill" in refused or landlock.version() < 6


def test_a_job_that_leaves_its_folder_learns_about_the_sandbox(suspicious: Cluster, rows: Path) -> None:
    body = with_model(short_job(rows, trainers=1), builder="thief:blunder") | {"max_restarts": 0}
    document = suspicious.wait_for(suspicious.submit(body), "failed", 120)
    assert "the sandbox keeps workers from" in document["reason"]
    assert "made-by-a-job" in document["reason"]


def test_nobody_else_reaches_a_running_gang(suspicious: Cluster, rows: Path) -> None:
    job = suspicious.submit(long_job(rows, trainers=1))
    document = suspicious.until(job, past_step(20), 120)
    local = psutil.Process(suspicious.process.pid)
    programs = [local, *local.children(recursive=True)]
    pids = {worker["pid"] for worker in document["attempts"][-1]["workers"]}
    assert {*pids, *suspicious.pids.values()} < {program.pid for program in programs}, "there are fork servers as well"
    listeners = {(program.pid, address) for program in programs for address in _listeners(program)}
    assert {pid for pid, _ in listeners} >= {suspicious.pid("master"), *pids}
    assert {address.ip for _, address in listeners} <= {"127.0.0.1", "::1"}
    port = next(int(line["port"]) for line in _progress(suspicious, job) if line["kind"] == "rendezvous")
    assert port not in {address.port for _, address in listeners}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    suspicious.until(job, past_step(document["progress"]["step"] + 20), 120)


def _listeners(program: psutil.Process) -> list[Any]:
    """The addresses at which a program accepts connections."""
    try:
        return [one.laddr for one in program.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    except psutil.AccessDenied:
        unavailable("the sockets of programs that are not dumpable can't be read here: it needs CAP_SYS_PTRACE")


def _progress(cluster: Cluster, job: str) -> list[dict[str, Any]]:
    paths = cluster.data.glob(f"nodes/*/work/{job}/*/0/progress.jsonl")
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]
