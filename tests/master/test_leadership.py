"""Of several masters one leads, and what another one decides does not count."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from tests.containers import environment, refused, until
from tests.ports import free_port

from rolecall.master.clock import utc_now
from rolecall.master.leadership import FolderLock
from rolecall.master.server import check_standby
from rolecall.master.store.session_lock import KEY, SessionLock
from rolecall.spec.errors import PROBLEM_PREFIX, STANDBY, SettingsError
from rolecall.spec.state import WorkerState

from .harness import (
    NODE_TOKEN,
    ONE_TRAINER,
    TOKEN,
    Client,
    ManualClock,
    Node,
    bearer,
    make_settings,
    one_trainer,
    serving,
)
from .test_server import PROGRAM

NODE_TIMEOUT_S = 3.0


@contextmanager
def master(data: Path, database_url: str, **given: str) -> Generator[tuple[subprocess.Popen[bytes], str]]:
    """A control program of the toy workload, in a process of its own, once it leads; and its URL."""
    port = free_port()
    root = Path(__file__).parents[2]
    own = {
        "ROLECALL_DATABASE_URL": database_url,
        "ROLECALL_PORT": str(port),
        "ROLECALL_TOKEN": TOKEN,
        "ROLECALL_NODE_TOKEN": NODE_TOKEN,
        "PYTHONPATH": f"{root / 'services'}:{root}",
        **given,
    }
    program = PROGRAM.replace("run(read_master(), CATALOGUE)", "sys.exit(run(read_master(), CATALOGUE))")
    command = [sys.executable, "-c", program]
    with (
        data.with_suffix(".log").open("wb") as log,
        subprocess.Popen(command, env=environment(data, **own), stderr=log) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: _is_ready(url))
            yield process, url
        finally:
            process.kill()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", headers=bearer(TOKEN)).is_success
    except httpx.TransportError:
        return False


async def ready(client: Client) -> None:
    """Wait until this master leads."""
    async with asyncio.timeout(30):
        while (await client.user("GET", "/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


def standby_settings(data: Path, database_url: str) -> Any:
    return make_settings(data, database_url=database_url, standby=True, node_timeout_s=NODE_TIMEOUT_S, heartbeat_s=0.5)


async def running_gang(url: str) -> tuple[Node, str]:
    """A played node whose one worker runs, at the master with this URL."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as http:
        client = Client(http, None)  # type: ignore[arg-type]
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        return node, job


@asynccontextmanager
async def continues(node: Node, client: Client, job: str) -> AsyncGenerator[None]:
    """Let the node beat to another master during the block; its gang is the same then, and runs."""
    node.client, node.desired = client, None

    async def beat() -> None:
        while True:  # A long poll: the master holds each heartbeat back.
            (worker,) = await node.beat(0.5)
            assert worker.stop is None

    beating = asyncio.create_task(beat())
    yield
    assert not beating.done(), beating.result()
    beating.cancel()
    document = await client.job(job)
    assert document["state"] == "running"
    assert len(document["attempts"]) == 1


@pytest.mark.slow
async def test_a_second_master_in_a_data_folder_names_the_first_and_ends(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as first:
        given = {"ROLECALL_PORT": str(free_port()), "ROLECALL_NODE_TIMEOUT_S": "0.5", "ROLECALL_LOG_LEVEL": "error"}
        line = await asyncio.to_thread(refused, os.EX_CONFIG, "master", env=environment(tmp_path, **given))
        assert line.startswith(f"rolecall: another master leads in ROLECALL_DATA={tmp_path}: process {os.getpid()} on ")
        assert "UTC; end that one" in line
        assert (await first.submit(roles=ONE_TRAINER))["state"] == "queued"


@pytest.mark.slow
async def test_a_second_master_on_a_database_names_the_first_and_ends(tmp_path: Path, database_url: str) -> None:
    folders = first_data, second_data = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        folder.mkdir()
    async with serving(make_settings(first_data, database_url=database_url)) as first:
        given = {"ROLECALL_DATABASE_URL": database_url, "ROLECALL_PORT": str(free_port())}
        given |= {"ROLECALL_NODE_TIMEOUT_S": "0.5", "ROLECALL_LOG_LEVEL": "error"}
        line = await asyncio.to_thread(refused, os.EX_CONFIG, "master", env=environment(second_data, **given))
        leader = f"rolecall process {os.getpid()} on {socket.gethostname()} (connected to the database since "
        assert line.startswith(f"rolecall: another master leads on this database: {leader}")
        assert "ROLECALL_STANDBY=1" in line
        assert (await first.submit(roles=ONE_TRAINER))["state"] == "queued"


async def test_a_successor_waits_for_a_master_that_ends(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as first:
        job = (await first.submit(roles=ONE_TRAINER))["id"]
        successor = serving(make_settings(tmp_path))
        second = await successor.__aenter__()
        for method, path in (
            ("GET", "/readyz"),
            ("GET", "/jobs"),
            ("POST", "/internal/nodes"),
            ("GET", "/metrics"),
        ):
            refusal = await second.user(method, path)
            assert refusal.status_code == 503
            assert refusal.headers["Retry-After"]
            assert refusal.json()["type"] == PROBLEM_PREFIX + STANDBY
            assert "standing by for another master" in refusal.json()["detail"]
    await ready(second)
    assert (await second.job(job))["state"] == "queued"
    await successor.__aexit__(None, None, None)


def test_a_lock_that_was_held_by_a_dead_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "master.lock"
    path.write_text("process 1 on a machine that is gone, since 2020-01-01\n")
    lock = FolderLock(path)
    assert lock.take("me", utc_now())
    assert path.read_text().startswith("me, since ")
    rival = FolderLock(path)
    assert not rival.take("you", utc_now())
    assert rival.holder().startswith("me, since ")
    lock.release()
    assert rival.take("you", utc_now())
    rival.release()


@pytest.mark.parametrize("url", [None, "sqlite:////srv/rolecall.db"])
def test_a_standby_needs_postgresql(tmp_path: Path, url: str | None) -> None:
    with pytest.raises(SettingsError, match="ROLECALL_STANDBY needs PostgreSQL"):
        check_standby(make_settings(tmp_path, database_url=url, standby=True))


@pytest.mark.slow
async def test_the_server_frees_the_lock_of_a_session_that_falls_silent(database_url: str) -> None:
    lease_s, loop = 1.0, asyncio.get_running_loop()
    first, second = SessionLock(database_url, "first", lease_s), SessionLock(database_url, "second")
    try:
        assert await first.take()
        assert not await second.take()
        assert (await second.holder()).startswith("first (connected to the database since ")
        beyond = loop.time() + 1.5 * lease_s  # as a standby does that has to wait for the folder
        while loop.time() < beyond:
            assert await first.take()
        assert not await second.take()
        async with asyncio.timeout(20):
            while not await second.take():
                await asyncio.sleep(0.1)
        with pytest.raises(Exception, match="idle-session timeout"):
            await first.take()
        assert not await first.take()
    finally:
        await first.release()
        await second.release()


@pytest.mark.slow
async def test_a_standby_takes_over_from_a_killed_master_and_no_gang_notices(tmp_path: Path, database_url: str) -> None:
    with master(tmp_path / "first", database_url) as (process, url):
        node, job = await running_gang(url)
        clock = ManualClock()
        async with serving(standby_settings(tmp_path / "second", database_url), clock=clock) as second:
            assert (await second.http.get("/healthz")).status_code == 200
            assert (await second.user("GET", "/readyz")).status_code == 503
            process.kill()
            await ready(second)
            async with continues(node, second, job):
                for _ in range(2):  # After twice this time, a silent node is lost.
                    clock.advance(NODE_TIMEOUT_S - 1)
                    async with asyncio.timeout(10):
                        while second.master.presence.silence_s(node.spec.name):
                            await asyncio.sleep(0.02)
                    await second.master.reconciler.reconcile()


@pytest.mark.slow
async def test_a_master_that_was_stopped_during_a_takeover_writes_nothing_and_ends(
    tmp_path: Path, database_url: str
) -> None:
    with master(tmp_path / "first", database_url) as (process, url):
        node, job = await running_gang(url)
        async with (
            serving(standby_settings(tmp_path / "second", database_url)) as second,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            process.send_signal(signal.SIGSTOP)
            late = asyncio.create_task(http.post("/jobs", headers=bearer(TOKEN), json={"workload": "toy"}))
            _end_lock_session(database_url)  # as the server does after the lease
            await ready(second)
            async with continues(node, second, job):
                process.send_signal(signal.SIGCONT)
                with suppress(httpx.TransportError):  # it may have ended before it answers
                    assert (await late).status_code == 503
                assert await asyncio.to_thread(process.wait, 30) == os.EX_TEMPFAIL
            assert [one["id"] for one in (await second.user("GET", "/jobs")).json()["jobs"]] == [job]
    assert "the master exits, because it no longer leads" in (tmp_path / "first.log").read_text()


@pytest.mark.slow
async def test_a_master_keeps_the_lead_through_a_restart_of_the_database(tmp_path: Path, database_url: str) -> None:
    async with serving(make_settings(tmp_path, database_url=database_url)) as client:
        held = _lock_holder(database_url)
        _end_lock_session(database_url)
        async with asyncio.timeout(20):
            while _lock_holder(database_url) in {None, held}:
                await asyncio.sleep(0.1)
        assert (await client.submit(roles=ONE_TRAINER))["state"] == "queued"


def _lock_holder(url: str) -> int | None:
    with psycopg.connect(url) as connection:
        query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = %s"
        row = connection.execute(query, [KEY]).fetchone()
    return row[0] if row else None


def _end_lock_session(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [_lock_holder(url)])
