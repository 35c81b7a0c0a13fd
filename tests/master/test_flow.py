"""A job's whole way through a real master, with nodes that the test plays."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.blobs import Blobs
from rolecall.master.store.database import Database
from rolecall.spec.errors import StaleAttempt
from rolecall.spec.role import Role
from rolecall.spec.state import StopMode, WorkerState
from rolecall.spec.wire import DesiredWorker

from .harness import ONE_TRAINER, Client, Node, failure, line, make_node, make_settings, one_trainer, serving


async def test_a_job_is_placed_runs_and_succeeds(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        assert worker.launch.master_addr == node.spec.address
        await node.say(worker, WorkerState.STARTING, rendezvous_port=4711)
        assert (await node.beat())[0].launch.rendezvous_port == 4711
        await node.say(worker, WorkerState.RUNNING)
        document = await client.until(job, "running")
        assert document["started_at"] is not None
        size = await node.progress(
            worker,
            line("first_step", step=1),
            line("step", step=1, steps=2, metrics={"loss": 0.5, "auc": 0.9}, samples_per_s=10.0),
            line("step", step=2, steps=2, metrics={"loss": float("nan")}),
            line("event", message="hello"),
            line("result", metrics={"test_auc": 0.91}),
        )
        assert await node.progress(worker, line("event", message="hello")) == size
        assert await node.say(worker, WorkerState.SUCCEEDED, exit_code=0) == []
        document = await client.until(job, "succeeded")
        assert document["result"] == {"test_auc": 0.91}
        assert document["progress"]["step"] == 2
        assert document["progress"]["loss"] is None
        assert document["progress"]["metrics"] == {"auc": 0.9}
        assert document["progress"]["start_s"]["total"] > 0
        assert document["attempts"][0]["workers"][0]["state"] == "succeeded"
        events = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
        assert [event["kind"] for event in events] == ["queued", "placed", "running", "worker", "succeeded"]
        assert events[1]["message"] == "1 worker placed"
        (series,) = (await client.user("GET", f"/jobs/{job}/metrics")).json()["series"]
        assert [point["loss"] for point in series["points"]] == [0.5, None]


@pytest.mark.slow
async def test_a_failed_gang_is_stopped_and_tried_again_from_its_checkpoint(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles={"parameter-server": 0, "trainer": 2}, max_restarts=1))["id"]
        first, second = await node.workers(2)
        await node.say(first, WorkerState.RUNNING)
        await node.say(second, WorkerState.RUNNING)
        await client.until(job, "running")
        assert (await client.checkpoint(job, 1, 5)).json() == {"recorded": True}
        await node.say(first, WorkerState.FAILED, failure=failure(traceback="line 1"), exit_code=1)
        (worker,) = await node.workers(1, StopMode.ABORT)
        await node.say(worker, WorkerState.STOPPED)
        again = await node.workers(2)
        assert {worker.launch.attempt for worker in again} == {2}
        assert again[0].launch.resume_from is not None
        assert again[0].launch.resume_from.step == 5
        (attempt, _) = (await client.job(job))["attempts"]
        events = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
        placed = [event["message"] for event in events if event["kind"] == "placed"]
        assert placed == ["2 workers placed", "2 workers placed; they resume from step 5"]
        assert attempt["cause"] == "trainer-0 on trainer-0: ValueError: broken"
        assert attempt["workers"][0]["failure"]["traceback"] == "line 1"
        assert (await client.checkpoint(job, 2, 6)).status_code == 201
        stale = await client.worker("PUT", job, 1, "/attempts/1/blobs/x", content=b"")
        assert stale.status_code == 409
        await node.say(again[0], WorkerState.FAILED, failure=failure())
        document = await client.until(job, "failed")
        assert [attempt["state"] for attempt in document["attempts"]] == ["failed", "failed"]


async def test_a_sweep_that_hangs_delays_neither_placement_nor_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps, may_end = asyncio.Event(), asyncio.Event()

    async def hang(*_: Any) -> int:
        sweeps.set()
        await may_end.wait()
        return 0

    monkeypatch.setattr(Blobs, "sweep", hang)
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        first = (await client.submit(roles={"trainer": 1, "parameter-server": 0}))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await node.say(worker, WorkerState.SUCCEEDED)
        async with asyncio.timeout(20):
            await client.until(first, "succeeded")
            await sweeps.wait()
            second = (await client.submit(roles={"trainer": 1, "parameter-server": 0}))["id"]
            await client.until(second, "placed")
            assert (await client.http.get("/healthz")).status_code == 200
        assert not may_end.is_set()
        may_end.set()


@pytest.mark.slow
@pytest.mark.parametrize("failures", [0, 3], ids=["at once", "by a store that fails at first"])
async def test_what_an_attempt_leaves_and_nobody_knows_of_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    errors, sweep = [OSError("the store hiccups")] * failures, Blobs.sweep

    async def hiccup(*arguments: Any) -> int:
        if errors:
            raise errors.pop()
        return await sweep(*arguments)

    monkeypatch.setattr(Blobs, "sweep", hiccup)

    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles={"trainer": 1, "parameter-server": 0}))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        assert (await client.checkpoint(job, 1, 5)).status_code == 201
        known = _files(tmp_path / "blobs" / job)
        await client.worker("PUT", job, 1, "/attempts/1/blobs/never-closed", content=b"a part")
        (tmp_path / "blobs" / job / "1" / ".upload-cut-off").write_bytes(b"half")
        assert len(_files(tmp_path / "blobs" / job)) == len(known) + 2
        await node.say(worker, WorkerState.FAILED, failure=failure())
        resumed = await _next_attempt(node, 2)
        assert _resumes_at(resumed) == 5
        await client.worker("PUT", job, 2, "/attempts/2/blobs/at-work", content=b"a part")
        await node.say(resumed, WorkerState.RUNNING)
        async with asyncio.timeout(10):  # it is deleted after the attempt's end is reported
            while _names(tmp_path / "blobs" / job) != {path.name for path in known} | {"at-work"}:
                await asyncio.sleep(0.02)
        await node.say(resumed, WorkerState.SUCCEEDED)
        await client.until(job, "succeeded")
        async with asyncio.timeout(10):  # it is deleted after the job's end is reported
            while _files(tmp_path / "blobs" / job) != known:
                await asyncio.sleep(0.02)


def _names(folder: Path) -> set[str]:
    return {path.name for path in _files(folder)}


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


async def _next_attempt(node: Node, number: int) -> DesiredWorker:
    """The attempt's worker, once the pause after the failure is over."""
    async with asyncio.timeout(10):
        while True:
            for worker in await node.beat(wait_s=0.2):
                if worker.launch.attempt == number:
                    return worker


def _resumes_at(worker: DesiredWorker) -> int | None:
    return worker.launch.resume_from.step if worker.launch.resume_from else None


async def test_a_heartbeat_is_held_back_until_something_changes(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        waiting = asyncio.create_task(node.beat(20.0))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        await client.submit(roles=ONE_TRAINER)
        assert len(await asyncio.wait_for(waiting, 2)) == 1


@pytest.mark.slow
async def test_a_silent_node_is_lost_and_its_job_goes_elsewhere(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path, node_timeout_s=1.0)) as client:
        first = await one_trainer(client, boot="m1", slots=1)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await first.workers()
        await first.say(worker, WorkerState.RUNNING)
        second = await one_trainer(client, "trainer-1", boot="m2")
        (again,) = await second.workers()
        assert again.launch.attempt == 2
        document = await client.job(job)
        assert "node trainer-0 was lost (silent for 1." in document["attempts"][0]["cause"]
        assert await first.beat() == []


@pytest.mark.slow
async def test_a_restarted_node_costs_an_attempt_and_a_name_has_one_owner(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        await node.workers()
        elsewhere = node.spec.model_copy(update={"started": "x", "address": "10.9.9.9"})
        refused = await client.internal("POST", "/nodes", json=elsewhere.model_dump(mode="json"))
        assert refused.status_code == 409
        assert "10.9.9.9" in refused.json()["detail"]
        stale = node.spec.started
        node.spec = node.spec.model_copy(update={"started": "second"})
        await node.enter()
        late = await client.internal("POST", "/nodes/trainer-0/heartbeat", json={"started": stale})
        assert late.status_code == 409
        assert (await client.internal("POST", "/nodes/none/heartbeat", json={"started": "x"})).status_code == 404
        (again,) = await node.workers()
        assert again.launch.attempt == 2
        assert "restarted" in (await client.job(job))["attempts"][0]["cause"]
        assert (await client.internal("DELETE", "/nodes/trainer-0")).status_code == 204
        document = await client.until(job, "queued")
        assert "left the cluster" in document["attempts"][1]["cause"]


@pytest.mark.slow
async def test_cancel_and_pause_ask_a_running_gang_to_leave(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        await client.user("POST", f"/jobs/{job}/pause")
        (worker,) = await node.workers(1, StopMode.PAUSE)
        assert (await client.checkpoint(job, 1, 3)).status_code == 201
        await node.say(worker, WorkerState.STOPPED, exit_code=75)
        await client.until(job, "paused")
        await client.user("POST", f"/jobs/{job}/resume")
        (worker,) = await node.workers()
        assert worker.launch.resume_from is not None
        await node.say(worker, WorkerState.STARTING)
        await client.user("POST", f"/jobs/{job}/pause")
        await client.user("POST", f"/jobs/{job}/cancel")
        (worker,) = await node.workers(1, StopMode.ABORT)  # It has not joined.
        await node.say(worker, WorkerState.STOPPED)
        document = await client.until(job, "cancelled")
        assert document["reason"] == "cancelled by admin"
        assert document["ended_at"] is not None


async def test_a_job_that_is_resumed_before_its_gang_has_stopped_is_queued_afterward(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        assert (await client.user("POST", f"/jobs/{job}/pause")).json()["state"] == "stopping"
        assert (await client.user("POST", f"/jobs/{job}/resume")).json()["state"] == "stopping"
        (worker,) = await node.workers(1, StopMode.DRAIN)
        assert (await client.checkpoint(job, 1, 3)).status_code == 201
        await node.say(worker, WorkerState.STOPPED, exit_code=75)
        (worker,) = await node.workers()
        assert worker.launch.resume_from is not None
        document = (await client.user("GET", f"/jobs/{job}")).json()
        assert [attempt["state"] for attempt in document["attempts"]] == ["paused", "placed"]
        events = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
        assert "resumed by admin" in [event["message"] for event in events]


async def test_a_draining_node_sends_its_job_back_to_the_queue(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        node.draining = True
        await node.beat()
        await client.until(job, "stopping")
        await node.say(worker, WorkerState.STOPPED)
        document = await client.until(job, "queued", also=lambda job: "draining" in (job["waiting_for"] or ""))
        assert document["attempts"][0]["stop"] == "drain"


async def test_an_expendable_worker_may_fail(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        trainer = await one_trainer(client)
        watcher = Node(client, make_node("observer-0", Role.OBSERVER))
        await watcher.register()
        await watcher.beat()
        job = (await client.submit(roles=ONE_TRAINER | {"observer": 1}))["id"]
        (worker,) = await trainer.workers()
        (observer,) = await watcher.workers()
        await trainer.say(worker, WorkerState.RUNNING)
        await watcher.say(observer, WorkerState.RUNNING)
        await client.until(job, "running")
        await watcher.say(observer, WorkerState.FAILED, failure=failure())
        async with asyncio.timeout(10):
            while (await _workers(client, job))[1]["state"] != "lost":
                await asyncio.sleep(0.02)
        await trainer.say(worker, WorkerState.SUCCEEDED)
        await client.until(job, "succeeded")


async def _workers(client: Client, job: str) -> list[dict[str, Any]]:
    return (await client.job(job))["attempts"][0]["workers"]


async def test_an_expendable_worker_that_fails_before_the_gang_has_met_is_the_cause(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        trainer = await one_trainer(client)
        watcher = Node(client, make_node("observer-0", Role.OBSERVER))
        await watcher.register()
        await watcher.beat()
        job = (await client.submit(roles=ONE_TRAINER | {"observer": 1}, max_restarts=0))["id"]
        (worker,) = await trainer.workers()
        (observer,) = await watcher.workers()
        await trainer.say(worker, WorkerState.STARTING)
        await watcher.say(observer, WorkerState.FAILED, failure=failure("no such environment", retryable=False))
        (stopped,) = await trainer.workers(1, StopMode.ABORT)
        await trainer.say(stopped, WorkerState.STOPPED)
        assert "observer-0 on observer-0: no such environment" in (await client.until(job, "failed"))["reason"]
        assert worker.launch == stopped.launch


async def test_a_deadline_ends_a_job_that_waits(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        job = (await client.submit(deadline_s=0.1))["id"]
        assert "deadline of 0.1 s" in (await client.until(job, "failed"))["reason"]


@asynccontextmanager
async def overtaken(url: str, change: str) -> AsyncGenerator[None]:
    """Another transaction makes this change before the master's writes of the block, and commits after their reads."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as watch:
        other.execute(change.encode())

        async def commit_when_waited_for() -> None:
            while watch.execute(waits).fetchone() == (0,):
                await asyncio.sleep(0.01)
            other.commit()

        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(commit_when_waited_for())
            yield


@pytest.mark.slow
async def test_calls_that_a_change_overtakes_see_its_outcome(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL lets them read the row first, and then wait for the other transaction."""
    overtakings, write = list[StaleAttempt](), Database.write

    @asynccontextmanager
    async def noting(database: Database) -> AsyncGenerator[AsyncConnection]:
        try:
            async with write(database) as connection:
                yield connection
        except StaleAttempt as error:
            overtakings.append(error)
            raise

    monkeypatch.setattr(Database, "write", noting)
    async with serving(make_settings(tmp_path, database_url=postgres_url)) as client:
        node = await one_trainer(client, slots=1)
        first = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.STARTING)
        async with overtaken(postgres_url, "UPDATE workers SET state = 'stopped'"):
            await node.say(worker, WorkerState.RUNNING)  # Refused, the node would register again.
        waits = (await client.submit(roles=ONE_TRAINER))["id"]
        for ask in ("pause", "resume", "cancel", "retry"):
            async with overtaken(postgres_url, f"UPDATE jobs SET attempt = attempt + 1 WHERE id = '{waits}'"):
                answer = await client.user("POST", f"/jobs/{waits}/{ask}")
            assert answer.status_code == 200, (ask, answer.text)
        async with overtaken(postgres_url, f"UPDATE jobs SET attempt = attempt + 1 WHERE id = '{waits}'"):
            answer = await client.user("DELETE", f"/jobs/{waits}", params={"force": True})
        assert answer.status_code == 204, answer.text
        await client.user("DELETE", f"/jobs/{first}", params={"force": True})
    assert len(overtakings) >= 6, "one for each call"


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_a_restarted_master_goes_on_where_it_was(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    url = None if store == "sqlite" else request.getfixturevalue("postgres_url")

    async with serving(make_settings(tmp_path, database_url=url)) as client:
        node = await one_trainer(client, slots=1)
        running = (await client.submit(roles=ONE_TRAINER))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(running, "running")
        queued = (await client.submit(roles=ONE_TRAINER))["id"]
        await client.until(queued, "queued", also=lambda job: job["waiting_for"])
        size = await node.progress(worker, line("step", step=7, metrics={"loss": 1.0}), line("event", message="hi"))
    async with serving(make_settings(tmp_path, database_url=url)) as client:
        node.client = client
        assert (await client.job(queued))["state"] == "queued"
        version = node.desired and node.desired.version
        assert len(await node.beat()) == 1
        assert node.desired
        assert node.desired.version == version
        await node.progress(worker, line("result", metrics={"auc": 1.0}), offset=size)
        await node.say(worker, WorkerState.SUCCEEDED)
        document = await client.until(running, "succeeded")
        assert (document["progress"]["step"], document["result"]) == (7, {"auc": 1.0})
        events = (await client.user("GET", f"/jobs/{running}/events")).json()["events"]
        assert [event["message"] for event in events].count("hi") == 1
        (worker2,) = await node.workers()
        assert worker2.launch.job == queued
