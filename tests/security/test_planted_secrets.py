# pyright: standard
"""Secrets are planted in a real cluster; then everything that it shows, logs or leaves behind is searched for them."""

import io
import os
import secrets
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from tests.cluster.jobs import short_job
from tests.master.harness import make_settings
from tests.running import accepted
from tests.security.programs import await_end, await_nodes, containers

from rolecall.master.blobs import check_url
from rolecall.master.server import run
from rolecall.spec.errors import SettingsError
from rolecall.spec.token import attempt_token, gang_secret

VAULT = Path(__file__).parent / "vault"
PLACES = ("events", "logs", "metrics", "timeline", "checkpoints", "artifacts")
FOLLOWED = ("events", "logs")


class Planted:
    """Random values, each of another kind."""

    def __init__(self) -> None:
        self.user_token = secrets.token_hex(16)
        self.node_token = secrets.token_hex(16)
        self.blob_key = secrets.token_hex(16)
        self.data_key = secrets.token_hex(16)
        self.query_key = secrets.token_hex(16)
        self.refused_key = secrets.token_hex(16)
        self.metrics_token = secrets.token_hex(16)
        self.database_password = secrets.token_hex(16)
        self.named_token = ""
        self.signing_key = ""
        self.attempts: dict[str, str] = {}

    def add_attempt(self, job: str) -> None:
        """Add the secrets that the workers of the job's first attempt get."""
        self.attempts[f"attempt token of {job}"] = attempt_token(self.signing_key, job, 1)
        self.attempts[f"gang secret of {job}"] = gang_secret(self.signing_key, job, 1)

    def found_in(self, text: str | bytes) -> list[str]:
        """The kinds of those that `text` holds."""
        shown = text if isinstance(text, str) else text.decode(errors="replace")
        kinds: Mapping[str, str] = {**vars(self), **self.attempts}
        return [kind for kind, value in kinds.items() if value and isinstance(value, str) and value in shown]

    def found_in_file(self, content: bytes) -> list[str]:
        """The kinds of those that a file holds, or a file of an archive."""
        return [kind for part in _unpacked(content) for kind in self.found_in(part)]


@pytest.mark.slow
def test_no_secret_is_shown_anywhere(rows: Path, tmp_path: Path, database_url: str) -> None:
    planted = Planted()
    shared = {
        "PYTHONPATH": f"{VAULT}:{os.environ.get('PYTHONPATH', '')}",
        "ROLECALL_NODE_TOKEN": planted.node_token,
        "ROLECALL_METRICS_TOKEN": planted.metrics_token,
        "ROLECALL_LOG_LEVEL": "debug",
        "ROLECALL_DATA_ROOTS": f"{rows.parent}:{tmp_path}",
        "ROLECALL_DATA_SCHEMES": "vault",
    }
    store = tmp_path / "blobs"
    store.mkdir()
    master = {
        "ROLECALL_TOKEN": planted.user_token,
        # The server of the tests takes any password. What the database itself holds is out of the search's reach.
        "ROLECALL_DATABASE_URL": database_url.replace("test@", f"test:{planted.database_password}@"),
        "ROLECALL_BLOB_URL": f"vault://me:{planted.blob_key}@store{store}",
    }
    source = f"vault://me:{planted.data_key}@store{rows}"
    missing = f"vault://me:{planted.data_key}@store{rows.parent}/missing.csv?token={planted.query_key}"
    roles = {"master": master, "parameter-server": {}, "trainer": {}}
    with containers(tmp_path, shared, roles) as (port, pids):
        url, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {planted.user_token}"}
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as client:
            nodes = await_nodes(client, 3)
            planted.signing_key = _signing_key(database_url)
            made = client.post("/tokens", json={"name": "ci", "scopes": ["submit"]}).raise_for_status().json()
            planted.named_token = made["secret"]
            client.get("/jobs", headers={"Authorization": f"Bearer {planted.named_token}"}).raise_for_status()
            jobs = []
            for path, state in ((source, "succeeded"), (missing, "failed")):
                body: dict[str, Any] = short_job(Path("rows"), trainers=1) | {"max_restarts": 0}
                body["params"]["data"]["train"] = path
                jobs.append(accepted(client.post("/jobs", json=body))["id"])
                planted.add_attempt(jobs[-1])
                document, shown = _await_end(client, jobs[-1], pids)
                assert document["state"] == state, document["reason"]
                # That it is named without its credentials, and not left out, shows that what is searched is there.
                assert "vault://***@store/" in str(document["params"]["data"]["train"])
                assert state == "failed" or _workers(document) <= shown.keys(), "they were looked at while they ran"
                assert not {what: found for what, text in shown.items() if (found := planted.found_in(text))}
            assert "vault://***@store/" in document["reason"]
            answers = dict(_answers(client, jobs, planted))
            answers |= {f"metrics of {node['spec']['name']}": _metrics_of(node, planted) for node in nodes}
            answers |= {f"rolecall show {job}": _show(url, planted, job) for job in jobs}
            assert "rolecall_node_slots" in answers["metrics of trainer"]
            for path in (f"/jobs/{jobs[1]}/logs", f"/jobs/{jobs[1]}/logs?follow=true", f"/ui/jobs/{jobs[1]}"):
                assert "vault://***@store/" in answers[path]
            artifacts = dict(_artifacts(client, jobs[0]))
            assert any(name.endswith(".zip") for name in artifacts)
    assert not {name: found for name, content in artifacts.items() if (found := planted.found_in_file(content))}
    assert not {what: found for what, text in answers.items() if (found := planted.found_in(text))}
    left = {path: planted.found_in_file(path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "trainer.log" for path in left)
    assert not {path: found for path, found in left.items() if found}
    assert not [path for path in tmp_path.rglob("*") if planted.found_in(str(path))]


def _signing_key(database_url: str) -> str:
    with psycopg.connect(database_url) as connection:
        row = connection.execute("SELECT value FROM signing_key").fetchone()
    assert row
    return str(row[0])


def _answers(client: httpx.Client, jobs: list[str], planted: Planted) -> Iterator[tuple[str, str]]:
    for path in (
        "/jobs",
        "/nodes",
        "/workloads",
        "/metrics",
        "/tokens",
        "/audit",
        "/findings",
        "/openapi.json",
        "/docs",
        "/",
        "/ui/overview",
        "/ui/submit",
        *(f"/ui/compare?job={job}" for job in jobs),
    ):
        yield path, client.get(path).raise_for_status().text
    for job in jobs:
        pages = (f"/ui/jobs/{job}", f"/ui/jobs/{job}/status")
        followed = (f"/jobs/{job}/{place}?follow=true" for place in FOLLOWED)
        for path in (f"/jobs/{job}", *(f"/jobs/{job}/{place}" for place in PLACES), *pages, *followed):
            yield path, client.get(path).text
    address = f"https://me:{planted.refused_key}@host/x?token={planted.refused_key}"
    for number, params in enumerate(({"batch_size": address}, {address: 1}, {"data": {"train": [address], "a": {}}})):
        refusal = client.post("/jobs", json={"workload": "embedding-ddp", "params": params})
        assert refusal.status_code == 422
        yield f"refusal {number}", refusal.text
    yield "refusal of the workload", client.post("/jobs", json={"workload": address}).text
    yield "an unknown job", client.get(f"/jobs/{address}").text
    yield "a wrong token", client.get("/jobs", headers={"Authorization": f"Bearer {planted.refused_key}"}).text


def _artifacts(client: httpx.Client, job: str) -> Iterator[tuple[str, bytes]]:
    for artifact in client.get(f"/jobs/{job}/artifacts").raise_for_status().json()["artifacts"]:
        name = artifact["name"]
        yield name, client.get(f"/jobs/{job}/artifacts/{name}").raise_for_status().content


def _unpacked(content: bytes) -> Iterator[bytes]:
    """The content, or the files of an archive, also those of archives in it."""
    yield content
    if zipfile.is_zipfile(file := io.BytesIO(content)):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                yield name.encode()
                yield from _unpacked(archive.read(name))


def _await_end(client: httpx.Client, job: str, pids: list[int]) -> tuple[dict[str, Any], dict[str, str]]:
    """The job's document when it has ended, and what `ps` showed meanwhile."""
    shown: dict[str, str] = {}
    return await_end(client, job, lambda: shown.update(_processes(pids))), shown


def _workers(document: dict[str, Any]) -> set[str]:
    return {f"process {worker['pid']}" for worker in document["attempts"][-1]["workers"]}


def _metrics_of(node: dict[str, dict[str, object]], planted: Planted) -> str:
    headers = {"Authorization": f"Bearer {planted.node_token}"}
    return httpx.get(f"http://127.0.0.1:{node['spec']['metrics_port']}/metrics", headers=headers, trust_env=False).text


def _show(url: str, planted: Planted, job: str) -> str:
    environment = os.environ | {"ROLECALL_URL": url, "ROLECALL_TOKEN": planted.user_token}
    command = [sys.executable, "-m", "rolecall.cli", "show", job]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def _processes(pids: list[int]) -> Iterator[tuple[str, str]]:
    """The output of `ps` about the programs and all that they started."""
    for pid in pids:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                yield f"process {process.pid}", "\0".join(process.cmdline())


@pytest.mark.parametrize("url", ["nothing://me:SECRET@host/x", "me:SECRET@host", "s9://host/x?sig=SECRET"])
def test_a_blob_url_of_no_use_is_named_without_its_credentials(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_url(url)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgres:me:SECRET@host", "postgresql://me:SECRET@host:port/name", "what://me:SECRET@host"]
)
def test_a_database_url_of_no_use_is_not_shown(url: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ROLECALL_DATABASE_URL") as caught:
        run(make_settings(tmp_path, database_url=url))
    assert "SECRET" not in str(caught.value)
