"""Passes of the reconciler over stored jobs, one at a time, by a clock that the test turns."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rolecall.master import registry
from rolecall.master.program import Master
from rolecall.master.reconciler import FORGET_NODE_S
from rolecall.master.store import attempts, jobs, nodes, workers
from rolecall.master.store.records import JobRecord
from rolecall.master.streams import StreamKey
from rolecall.spec.job import JobSpec
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, StopMode, WorkerState
from rolecall.spec.wire import Heartbeat

from .harness import ManualClock, line, make_node, still_master

NODE = make_node("trainer-0", Role.TRAINER)


@asynccontextmanager
async def on_master(data: Path, **values: Any) -> AsyncGenerator[tuple[Master, ManualClock]]:
    """A master whose loops stand still, with a live node, and the job `toy-1` placed on it."""
    clock = ManualClock()
    async with still_master(data, clock) as master:
        await registry.register(master, NODE)
        await registry.receive(master, NODE.name, Heartbeat(started=NODE.started))
        async with master.database.write() as connection:
            spec = JobSpec(id="toy-1", workload="toy", roles={Role.TRAINER: 1}, **values)
            await jobs.add(connection, spec, clock.now())
        master.waking.queued("toy-1")
        await master.placer.place()
        assert (await job(master)).state is JobState.PLACED
        yield master, clock


async def job(master: Master) -> JobRecord:
    async with master.database.read() as connection:
        return await jobs.get(connection, "toy-1")


async def report(master: Master, state: WorkerState) -> None:
    """Store that the gang's worker is in this state."""
    async with master.database.write() as connection:
        (worker,) = await workers.on_node(connection, NODE.name)
        now = master.clock.now()
        await workers.store(connection, worker, replace(worker, state=state, spawned_at=now, joined_at=now))
    master.waking.jobs("toy-1")


async def test_a_job_follows_its_workers_from_placed_to_succeeded(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, _):
        await master.reconciler.reconcile()
        assert (await job(master)).state is JobState.PLACED, "nothing has happened"
        await report(master, WorkerState.RUNNING)
        await master.reconciler.reconcile()
        assert (await job(master)).state is JobState.RUNNING
        garbage = master.garbage.ticket()
        await report(master, WorkerState.SUCCEEDED)
        await master.reconciler.reconcile()
        assert (await job(master)).state is JobState.SUCCEEDED
        assert garbage.is_set(), "the attempt may have left something"


async def test_a_late_chunk_does_not_keep_the_progress_of_an_ended_job_in_memory(tmp_path: Path) -> None:
    async def chunk() -> AsyncIterator[bytes]:
        yield line("step", step=7).model_dump_json().encode() + b"\n"

    key = StreamKey("toy-1", 1, 0, "progress")
    async with on_master(tmp_path) as (master, _):
        await master.streams.append(key, 0, chunk())
        await master.progress.ingest(master.database, key)
        await master.reconciler.reconcile()
        assert master.progress.of_job("toy-1", 1) is not None
        await report(master, WorkerState.SUCCEEDED)
        await master.reconciler.reconcile()
        await master.progress.ingest(master.database, key)
        assert master.progress.of_job("toy-1", 1) is not None, "its call was admitted before the end"
        await master.reconciler.reconcile()
        assert master.progress.of_job("toy-1", 1) is None


@pytest.mark.slow
async def test_a_silent_node_costs_its_jobs_an_attempt_and_is_forgotten_after_an_hour(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, clock):
        await report(master, WorkerState.RUNNING)
        await master.reconciler.reconcile()
        for _ in range(4):
            clock.advance(10)  # with passes in between, so that the master itself was not stopped
            await master.reconciler.reconcile()
        record = await job(master)
        assert (record.state, record.restarts) == (JobState.QUEUED, 1)
        assert "node trainer-0 was lost (silent for 40.0 s)" in (record.reason or "")
        async with master.database.read() as connection:
            assert await nodes.find(connection, NODE.name)
        for _ in range(int(FORGET_NODE_S / 20)):
            clock.advance(20)
            await master.reconciler.reconcile()
        async with master.database.read() as connection:
            assert await nodes.find(connection, NODE.name) is None
        assert not master.presence.is_current(NODE.name, NODE.started), "the memory forgets it as well"


async def test_a_node_whose_heartbeat_arrives_while_a_pass_waits_for_the_database_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_master(tmp_path) as (master, clock):
        await report(master, WorkerState.RUNNING)
        await master.reconciler.reconcile()
        read = workers.on_nodes

        async def read_late(*given: Any) -> Any:
            found = await read(*given)
            master.presence.record_heartbeat(NODE.name, NODE.started)
            return found

        monkeypatch.setattr(workers, "on_nodes", read_late)
        for _ in range(4):
            clock.advance(10)
            await master.reconciler.reconcile()
        assert (await job(master)).state is JobState.RUNNING


async def test_a_master_that_was_stopped_loses_nobody(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, clock):
        await report(master, WorkerState.RUNNING)
        await master.reconciler.reconcile()
        clock.advance(3600)
        await master.reconciler.reconcile()
        assert (await job(master)).state is JobState.RUNNING


async def test_a_deadline_stops_a_gang_and_ends_a_job_that_waits(tmp_path: Path) -> None:
    async with on_master(tmp_path, deadline_s=5) as (master, clock):
        await report(master, WorkerState.RUNNING)
        await master.reconciler.reconcile()
        async with master.database.write() as connection:
            waits = JobSpec(id="toy-2", workload="toy", roles={Role.TRAINER: 9}, deadline_s=5)
            await jobs.add(connection, waits, clock.now())
        master.waking.queued("toy-2")
        clock.advance(4.4)
        await master.reconciler.reconcile()
        assert (await job(master)).state is JobState.RUNNING
        clock.advance(0.6)  # more than a tick, at which the reconciler looks at all gangs
        await master.reconciler.reconcile()
        async with master.database.read() as connection:
            gang = await attempts.gang(connection, await jobs.get(connection, "toy-1"))
            other = await jobs.get(connection, "toy-2")
        assert (gang.job.state, gang.attempt.stop) == (JobState.STOPPING, StopMode.DEADLINE)
        assert other.state is JobState.FAILED
        assert other.reason == "its deadline of 5 s after the submission has passed"


async def test_a_failed_attempt_waits_before_the_next_one(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, clock):
        await report(master, WorkerState.FAILED)
        await master.reconciler.reconcile()
        record = await job(master)
        assert (record.state, record.attempt, record.crashes) == (JobState.QUEUED, 1, 1)
        assert record.not_before == clock.now() + timedelta(seconds=0.2)
        await master.placer.place()
        assert (await job(master)).state is JobState.QUEUED
        clock.advance(0.2)
        await master.placer.place()
        record = await job(master)
        assert (record.state, record.attempt) == (JobState.PLACED, 2)
