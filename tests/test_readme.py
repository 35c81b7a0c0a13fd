# pyright: standard
"""The commands of README.md, as printed, in a new shell."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster.jobs import long_job, past_step
from tests.conftest import Cluster, running_cluster
from tests.containers import until

from rolecall.spec.role import Role

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
"""The language and the text of each block. Those of `bash` are executed by `test_docs.py`."""
SHORT: dict[str, dict[str, Any]] = {
    "embedding-ddp": {"epochs": 1, "max_steps": 20},
    "rnn-lm": {"embedding_dim": 8, "hidden_dim": 8, "epochs": 1, "max_steps": 4},
    "transformer-pipeline": {"dim": 8, "heads": 1, "max_steps": 4},
}
"""Parameters that make the examples short. `test_demo.py` and `tests/cluster` run them in full."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a slot for each stage of the examples, as that of the quick start."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), "--stages", "2") as started:
        yield started


def block(beginning: str) -> list[str]:
    """The lines of the block that begins so."""
    (found,) = [text for _, text in BLOCKS if text.startswith(beginning)]
    return found.splitlines()


def new_environment(folder: Path) -> dict[str, str]:
    """Without settings; `folder` is the user's home."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}


def in_new_shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a shell that has inherited no settings, in `folder`."""
    environment = new_environment(folder) | variables
    command = ["bash", "-e", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
    return done


def test_every_block_is_executed() -> None:
    """`tests/deploy/test_containers.py` runs the containers' commands on an engine."""
    others = [text.splitlines()[0] for language, text in BLOCKS if language not in {"bash", "mermaid"}]
    assert others == [
        "make demo",
        ".venv/bin/rolecall local --stages 2 --observers 2",
        "source .venv/bin/activate",
        "rolecall submit examples/transformer-pipeline.json",
        "docker compose up --detach --wait",
        "k8s/quickstart --registry registry.example.com/team",
    ]


def test_the_targets_of_make_run_what_the_tests_run() -> None:
    demo, fast = block("make demo")
    assert "examples/demo.sh" in in_new_shell(f"{demo} --dry-run", ROOT).stdout
    assert '-m "not slow"' in in_new_shell(f"{fast} --dry-run", ROOT).stdout


@pytest.mark.slow
def test_the_cluster_of_the_quick_start(tmp_path: Path) -> None:
    (command,) = block(".venv/bin/rolecall local")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    # The port of the README can be in use here.
    shell = ["bash", "-c", f"exec {command} --port 0"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            shell, cwd=tmp_path, env=new_environment(tmp_path), stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout
        ready = re.fullmatch(r"ready (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
        assert ready, (tmp_path / "log").read_text()
        token = (tmp_path / ".rolecall/token").read_text().strip()
        answer = httpx.get(f"{ready[1]}/nodes", headers={"Authorization": f"Bearer {token}"}).raise_for_status()
        assert {node["spec"]["role"] for node in answer.json()["nodes"]} == set(Role)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_the_quick_start_of_kubernetes(tmp_path: Path) -> None:
    (command,) = block("k8s/quickstart")
    done = in_new_shell(f"{command} --print --directory {tmp_path / 'mine'}", ROOT)
    assert "registry.example.com/team" in done.stdout + (tmp_path / "mine/kustomization.yaml").read_text()


@pytest.mark.timeout(300)
def test_the_commands_of_the_quick_start(cluster: Cluster, tmp_path: Path, rows: Path) -> None:
    shell = new_shell(cluster, tmp_path)
    first, *commands = block("source .venv")
    ended: list[str] = []
    for command in commands:
        known = ended or [""]
        done = shell(f"{first}\n{named(command, known)}")
        assert done.stdout, command
        if "submit" in command:
            ended.append(newest_job(cluster))
    assert cluster.job(ended[0])["state"] == "succeeded"
    assert (tmp_path / "model.zip").stat().st_size > 1000

    submit, *followed, stacks, pause, resume, cancel, retry, delete = block("rolecall submit")
    shell(f"{first}\n{submit}")
    ended = [newest_job(cluster)]
    cluster.wait_for(ended[0], "succeeded")
    for command in followed:  # Of a job that runs, they would end only with it.
        assert shell(f"{first}\n{named(command, ended)}").stdout, command

    job = cluster.submit(long_job(rows))
    cluster.until(job, past_step(5))
    assert "trainer-1" in shell(f"{first}\n{named(stacks, [job])}").stdout
    for command, state in {pause: "paused", resume: "running", cancel: "cancelled", retry: "running"}.items():
        shell(f"{first}\n{named(command, [job])}")
        cluster.until(job, lambda document, state=state: document["state"] == state)
    shell(f"{first}\n{named(delete, [job])}")
    until(lambda: cluster.client.get(f"/jobs/{job}").status_code == 404)  # When its workers have ended.
    cluster.client.delete("/tokens/alice").raise_for_status()


def new_shell(cluster: Cluster, folder: Path) -> Any:
    """Runs scripts in a folder like that of the project, where a user who has started the cluster finds it."""
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "examples").mkdir()
    for name, params in SHORT.items():
        job = json.loads((ROOT / f"examples/{name}.json").read_text().replace("examples/data", f"{ROOT}/examples/data"))
        job["params"] |= params
        (folder / f"examples/{name}.json").write_text(json.dumps(job))
    config = str(cluster.data / "config")
    return lambda script: in_new_shell(script, folder, XDG_CONFIG_HOME=config)


def named(command: str, jobs: list[str]) -> str:
    """The command with the ids of jobs: the first one's, and for two jobs also the next one's."""
    command = command.replace("ID ID", f"{jobs[0]} {jobs[-1]}")
    return re.sub(r"\bID\b", jobs[0], command)


def newest_job(cluster: Cluster) -> str:
    return cluster.client.get("/jobs", params={"limit": 1}).raise_for_status().json()["jobs"][0]["id"]
