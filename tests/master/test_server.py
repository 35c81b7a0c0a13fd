"""The control program as a process: signals, a kill in the middle, a port that is taken."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest
from tests.running import accepted

from rolecall.master.blobs import check_url
from rolecall.master.store.database import Database
from rolecall.spec.errors import SettingsError
from rolecall.spec.role import Role

from .harness import NODE_TOKEN, ONE_TRAINER, TOKEN, Client, bearer, make_node

PROGRAM = """
import sys
from tests.master.harness import CATALOGUE
from rolecall.master.server import run
from rolecall.settings.master import read_master
run(read_master(), CATALOGUE)
"""


@contextmanager
def program(data: Path, port: int = 0, **more: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A running master and its URL."""
    root = Path(__file__).parents[2]
    settings = {
        "ROLECALL_DATA": data,
        "ROLECALL_TOKEN": TOKEN,
        "ROLECALL_NODE_TOKEN": NODE_TOKEN,
        "ROLECALL_PORT": port,
    }
    paths = {"PYTHONPATH": f"{root / 'services'}:{root}", "ROLECALL_HOST": "127.0.0.1", "ROLECALL_HEARTBEAT_S": "20"}
    environment = os.environ | {name: str(value) for name, value in (settings | paths | more).items()}
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, listening(process)
        finally:
            process.kill()


def listening(process: subprocess.Popen[str]) -> str:
    """The URL from the line that tells it."""
    assert process.stderr
    log: list[str] = []
    for text in process.stderr:
        log.append(text)
        if "master listening on " in text:
            return text.split("master listening on ")[1].split()[0].rstrip('",')
    raise AssertionError("".join(log))


@pytest.mark.slow
def test_a_signal_ends_it_at_once_and_cleanly_though_a_heartbeat_waits(tmp_path: Path) -> None:
    with program(tmp_path) as (process, url):
        spec = make_node("trainer-0", Role.TRAINER)
        headers = bearer(NODE_TOKEN)
        httpx.post(f"{url}/internal/nodes", headers=headers, json=spec.model_dump(mode="json")).raise_for_status()
        beat = {"started": spec.started}
        seen = httpx.post(f"{url}/internal/nodes/trainer-0/heartbeat", headers=headers, json=beat).json()["version"]
        answers: list[int] = []

        def wait() -> None:
            waits = beat | {"seen": seen, "wait_s": 20}
            response = httpx.post(f"{url}/internal/nodes/trainer-0/heartbeat", headers=headers, json=waits, timeout=30)
            answers.append(response.status_code)

        waiting = Thread(target=wait)
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        waiting.join()
        assert answers == [200]


@pytest.mark.slow
def test_log_records_are_json_objects_that_name_their_event_and_job(tmp_path: Path) -> None:
    with program(tmp_path, ROLECALL_LOG_FORMAT="json") as (process, url):
        headers, spec = bearer(NODE_TOKEN), make_node("trainer-0", Role.TRAINER)
        httpx.post(f"{url}/internal/nodes", headers=headers, json=spec.model_dump(mode="json")).raise_for_status()
        beat = {"started": spec.started}
        httpx.post(f"{url}/internal/nodes/trainer-0/heartbeat", headers=headers, json=beat).raise_for_status()
        body = {"workload": "toy", "roles": ONE_TRAINER}
        job = accepted(httpx.post(f"{url}/jobs", headers=bearer(TOKEN), json=body))["id"]
        assert process.stderr
        records = (json.loads(line) for line in process.stderr)
        placed = next(record for record in records if record.get("event") == "job_placed")
        assert (placed["level"], placed["job"], placed["attempt"]) == ("INFO", job, 1)
        assert placed["message"] == f"job {job} attempt 1: placed 1 workers"


@pytest.mark.slow
def test_a_killed_master_loses_nothing(tmp_path: Path) -> None:
    with program(tmp_path) as (process, url):
        job = accepted(httpx.post(f"{url}/jobs", headers=bearer(TOKEN), json={"workload": "toy"}))["id"]
        process.kill()
        process.wait()
    with program(tmp_path) as (process, url):
        document = httpx.get(f"{url}/jobs/{job}", headers=bearer(TOKEN)).json()
        assert document["state"] == "queued"


async def test_an_answer_does_not_wait_for_an_acknowledgement(client: Client) -> None:
    """With Nagle's algorithm each would take 40 ms."""

    took_s: list[float] = []
    for _ in range(15):
        begin = time.perf_counter()
        await client.http.get("/healthz")
        took_s.append(time.perf_counter() - begin)
    assert min(took_s) < 0.03


@pytest.mark.slow
async def test_a_call_that_the_exit_cuts_off_is_asked_to_try_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = asyncio.Event()

    async def hang(_: Database) -> None:
        called.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(Database, "ping", hang)
    call = asyncio.create_task(client.user("GET", "/readyz"))
    await called.wait()
    client.server.should_exit = True
    answer = await call
    assert answer.status_code == 503
    assert answer.headers["Retry-After"]
    assert answer.json()["detail"] == "the master exits before it could complete this call; try again"


@pytest.mark.slow
def test_a_taken_port_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(AssertionError, match="already in use"):
        program(tmp_path, taken.getsockname()[1]).__enter__()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/rolecall", "Install s3fs to access S3: install it in master and nodes"),
        ("bucket/rolecall", "is not a URL that fsspec knows, like s3://bucket/folder"),
        ("s4://bucket", "is not a URL that fsspec knows"),
    ],
)
def test_a_blob_url_that_nobody_can_open_is_an_error(url: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        check_url(url)
    assert str(caught.value).startswith(f"ROLECALL_BLOB_URL={url}")


def test_a_blob_url_of_a_folder_is_fine(tmp_path: Path) -> None:
    check_url(tmp_path.as_uri())
