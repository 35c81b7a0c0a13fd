"""A row that can't be read costs what it is about, and nothing else."""

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rolecall.master.api import cluster
from rolecall.spec.access import Scope
from rolecall.spec.state import WorkerState

from .harness import ONE_TRAINER, Client, Node, failure, make_token, on_master, one_trainer


def damage(data: Path, table: str, column: str, text: str, where: str) -> None:
    """Write `text` over a value, as a newer release or a bad disk might."""
    with closing(sqlite3.connect(data / "rolecall.db")) as database:
        changed = database.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", [text])
        assert changed.rowcount > 0
        database.commit()


async def assert_works(client: Client) -> None:
    """All that reads every job still answers."""
    for path in ("/jobs", "/metrics", "/readyz", "/nodes"):
        answer = await client.user("GET", path)
        assert answer.status_code == 200, f"{path}: {answer.text}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("progress", '{"step": "many"}', "progress can't be read (step:"),
        ("roles", '{"chef": 1}', "roles can't be read (chef"),
        ("params", "[1, 2", "params can't be read (Invalid JSON"),
        ("state", "frozen", "state can't be read ('frozen' is none of queued"),
        ("queued_at", "yesterday", "queued_at can't be read"),
    ],
)
async def test_a_queued_job_that_cant_be_read_is_set_aside(tmp_path: Path, column: str, text: str, said: str) -> None:
    async with on_master(tmp_path) as client:
        bad = (await client.submit(roles=ONE_TRAINER))["id"]
    damage(tmp_path, "jobs", column, text, "1")
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        good = (await client.submit(roles=ONE_TRAINER))["id"]
        assert [worker.launch.job for worker in await node.workers()] == [good]
        document = await client.until(bad, "failed", also=lambda job: job["ended_at"])
        assert said in document["reason"]
        assert "run that release again and retry the job" in document["reason"]
        events = (await client.user("GET", f"/jobs/{bad}/events")).json()["events"]
        assert (events[-1]["kind"], events[-1]["message"]) == ("failed", document["reason"])
        await assert_works(client)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "column", "text", "said"),
    [
        ("attempts", "plan", '{"workers": 3}', "of its attempt 1, its stored plan can't be read"),
        ("attempts", "resume_from", "{}", "of its attempt 1, its stored resume_from can't be read"),
        ("workers", "state", "levitating", "of its attempt 1, its stored state can't be read ('levitating'"),
        ("workers", "failure", "nothing", "of its attempt 1, its stored failure can't be read"),
    ],
)
async def test_a_running_job_that_cant_be_read_gives_its_slots_back(
    tmp_path: Path, table: str, column: str, text: str, said: str
) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client, slots=1)
        bad = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(bad, "running")
        waiting = (await client.submit(roles=ONE_TRAINER))["id"]
    damage(tmp_path, table, column, text, f"job = '{bad}'")
    async with on_master(tmp_path) as client:
        node = await one_trainer(client, slots=1)
        document = await client.until(bad, "failed")
        assert said in document["reason"]
        (worker,) = await node.workers()
        assert worker.launch.job == waiting
        await assert_works(client)


async def test_a_node_that_cant_be_read_registers_again(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        await one_trainer(client)
    damage(tmp_path, "nodes", "spec", '{"role": "chef"}', "1")
    async with on_master(tmp_path) as client:
        other = await one_trainer(client, "trainer-1", boot="m1")
        await assert_works(client)
        node = Node(client, other.spec.model_copy(update={"name": "trainer-0", "started": "trainer-0-first"}))
        unknown = await client.internal("POST", "/nodes/trainer-0/heartbeat", json={"started": "trainer-0-first"})
        assert unknown.status_code == 404
        await node.enter()
        assert await node.beat() == []


@pytest.mark.slow
async def test_a_checkpoint_that_cant_be_read_is_passed_over_and_its_parts_stay(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        for step in (5, 6):
            assert (await client.checkpoint(job, 1, step)).status_code == 201
    damage(tmp_path, "checkpoints", "manifest", json.dumps({"step": 6}), "step = 6")
    async with on_master(tmp_path, keep_checkpoints=1) as client:
        node = await one_trainer(client)
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.FAILED, failure=failure())
        async with asyncio.timeout(20):
            while not any(worker.launch.attempt == 2 for worker in await node.beat(0.2)):
                pass
        assert node.desired
        resume_from = node.desired.workers[0].launch.resume_from
        assert resume_from is not None
        assert resume_from.step == 5
        found = (await client.user("GET", f"/jobs/{job}/checkpoints")).json()["checkpoints"]
        assert [one["manifest"]["step"] for one in found] == [5]
        assert (await client.checkpoint(job, 2, 7)).status_code == 201
        await client.master.cleaner.clean()
        await node.say(node.desired.workers[0], WorkerState.SUCCEEDED, exit_code=0)
        document = await client.until(job, "succeeded")
        assert [one["state"] for one in document["attempts"]] == ["failed", "succeeded"]
        await client.master.cleaner.clean()
    assert {path.parent.name for path in tmp_path.rglob("part")} == {"step-5", "step-6", "step-7"}


async def test_a_token_that_cant_be_read_is_valid_for_nothing_and_the_others_are(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        bad, good = [await make_token(client, name, Scope.READ) for name in ("bad", "good")]
    damage(tmp_path, "tokens", "scopes", '["fly"]', "name = 'bad'")
    async with on_master(tmp_path) as client:
        assert (await client.call(bad, "GET", "/jobs")).status_code == 401
        assert (await client.call(good, "GET", "/jobs")).status_code == 200
        await assert_works(client)
        found = (await client.user("GET", "/tokens")).json()["tokens"]
        assert "good" in {token["name"] for token in found}


@pytest.mark.slow
async def test_a_master_whose_passes_fail_is_not_ready_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE_S", 1.5)

    async with on_master(tmp_path) as client:
        await assert_works(client)
        with closing(sqlite3.connect(tmp_path / "rolecall.db")) as database:
            database.execute("ALTER TABLE nodes RENAME TO hidden")
        await client.submit(roles=ONE_TRAINER)
        client.master.waking.nodes("trainer-0")
        async with asyncio.timeout(20):
            while (answer := await client.user("GET", "/readyz")).status_code == 200:
                await asyncio.sleep(0.1)
        assert answer.status_code == 503
        assert "no pass succeeded for" in answer.json()["detail"]
        assert "no such table: nodes" in answer.json()["detail"]
        with closing(sqlite3.connect(tmp_path / "rolecall.db")) as database:
            database.execute("ALTER TABLE hidden RENAME TO nodes")
        async with asyncio.timeout(20):
            while (await client.user("GET", "/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
