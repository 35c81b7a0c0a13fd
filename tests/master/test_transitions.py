"""Transitions of one job on an empty database: what each commits for the job, its attempt and its workers."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.lifecycle import JobStep, has_left_alone
from rolecall.master.store import attempts, checkpoints, events, jobs, schema, workers
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.store.records import Gang, JobRecord
from rolecall.master.transitions import (
    VERIFY_S,
    NodeLoss,
    apply_step,
    broken_gangs,
    fail_unreadable,
    lose_workers,
    take_step,
)
from rolecall.spec.errors import StaleAttempt
from rolecall.spec.job import JobSpec
from rolecall.spec.plan import CheckpointManifest, GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.state import STOPPED_STATUS, JobState, StopMode, WorkerState

from .harness import failure

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
NODES = ("trainer-0", "trainer-1")
PLAN = GangPlan(
    workers=tuple(
        WorkerPlan(rank=rank, role=Role.TRAINER, role_rank=rank, node=node, threads=1)
        for rank, node in enumerate(NODES)
    )
)
TRY_AGAIN = JobStep(JobState.QUEUED, "ValueError: broken", attempt_state=JobState.FAILED, costs_restart=True)


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[AsyncConnection]:
    """A transaction on a database that has one job, `toy-1`, queued."""
    database = Database(sqlite_url(tmp_path / "rolecall.db"))
    try:
        await database.migrate()
        async with database.write() as connection:
            await jobs.add(connection, JobSpec(id="toy-1", workload="toy", roles={Role.TRAINER: 2}), NOW)
            yield connection
    finally:
        await database.close()


def nobody(_: str) -> frozenset[Role]:
    """No worker is expendable."""
    return frozenset()


async def job(connection: AsyncConnection) -> JobRecord:
    return await jobs.get(connection, "toy-1")


async def place(connection: AsyncConnection, resume_from: CheckpointManifest | None = None) -> Gang:
    """The gang of the job's next attempt."""
    await attempts.begin(connection, await job(connection), PLAN, resume_from, NOW)
    return await attempts.gang(connection, await job(connection))


async def abort(connection: AsyncConnection) -> Gang:
    """The gang of the job's current attempt, once it is being aborted."""
    step = JobStep(JobState.STOPPING, "ValueError: broken", stop=StopMode.ABORT)
    await apply_step(connection, await job(connection), step, NOW)
    return await attempts.gang(connection, await job(connection))


async def checkpoint(connection: AsyncConnection, attempt: int) -> CheckpointManifest:
    manifest = CheckpointManifest(attempt=attempt, step=10 * attempt, parts=(), position={})
    assert await checkpoints.add(connection, "toy-1", manifest, NOW)
    return manifest


def accusing(gang: Gang) -> Gang:
    """The gang whose second worker has failed, because it could not read the checkpoint."""
    damaged = failure("DamagedCheckpoint: part 'part' is gone", condemns_checkpoint=True)
    first, second = gang.workers
    return replace(gang, workers=(first, replace(second, state=WorkerState.FAILED, failure=damaged)))


async def test_a_job_that_waits_is_cancelled_and_concerns_no_node(connection: AsyncConnection) -> None:
    step = JobStep(JobState.CANCELLED, "cancelled by alice")
    assert await apply_step(connection, await job(connection), step, LATER) == set()
    ended = await job(connection)
    assert (ended.state, ended.reason, ended.ended_at) == (JobState.CANCELLED, "cancelled by alice", LATER)


async def test_a_job_is_stopped_together_with_its_attempt(connection: AsyncConnection) -> None:
    await place(connection)
    step = JobStep(JobState.STOPPING, "paused by alice", stop=StopMode.PAUSE)
    assert await apply_step(connection, await job(connection), step, LATER) == set(NODES)
    gang = await attempts.gang(connection, await job(connection))
    assert (gang.job.state, gang.attempt.state) == (JobState.STOPPING, JobState.STOPPING)
    assert (gang.attempt.stop, gang.attempt.cause) == (StopMode.PAUSE, "paused by alice")
    assert gang.attempt.ended_at is None
    await take_step(connection, gang, JobStep(JobState.PAUSED), LATER)
    gang = await attempts.gang(connection, await job(connection))
    assert (gang.attempt.state, gang.attempt.ended_at) == (JobState.PAUSED, LATER)
    assert gang.attempt.stop is StopMode.PAUSE, "how it was stopped is still known"


async def test_a_gang_that_is_being_stopped_can_be_given_another_end(connection: AsyncConnection) -> None:
    await take_step(connection, await place(connection), JobStep(JobState.STOPPING, "paused", stop=StopMode.PAUSE), NOW)
    recorded = await events.of_job(connection, "toy-1")
    step = JobStep(JobState.STOPPING, "cancelled by alice", stop=StopMode.CANCEL)
    assert await apply_step(connection, await job(connection), step, LATER) == set(NODES)
    gang = await attempts.gang(connection, await job(connection))
    assert (gang.job.state, gang.job.reason) == (JobState.STOPPING, "cancelled by alice")
    assert (gang.attempt.stop, gang.attempt.cause) == (StopMode.CANCEL, "cancelled by alice")
    assert await events.of_job(connection, "toy-1") == recorded, "its state is the same"


@pytest.mark.parametrize("stop", [StopMode.DRAIN, StopMode.CANCEL])
async def test_the_end_of_a_gang_is_decided_by_the_newest_request(connection: AsyncConnection, stop: StopMode) -> None:
    step = JobStep(JobState.STOPPING, "paused by alice", stop=StopMode.PAUSE)
    await place(connection)
    await apply_step(connection, await job(connection), step, NOW)
    seen = await attempts.gang(connection, await job(connection))
    await apply_step(connection, await job(connection), JobStep(JobState.STOPPING, "changed", stop=stop), LATER)
    with pytest.raises(StaleAttempt):
        await take_step(connection, seen, JobStep(JobState.PAUSED), LATER)


async def test_a_gang_that_a_newer_release_stops_can_end(connection: AsyncConnection) -> None:
    await place(connection)
    await connection.execute(update(schema.attempts).values(stop="relocate"))
    gang = await attempts.gang(connection, await job(connection))
    assert gang.attempt.stop is StopMode.DRAIN
    await take_step(connection, gang, JobStep(JobState.STOPPING), LATER)


async def test_a_job_started_when_its_first_attempt_ran(connection: AsyncConnection) -> None:
    await take_step(connection, await place(connection), JobStep(JobState.RUNNING), NOW)
    await take_step(connection, await abort(connection), TRY_AGAIN, NOW)
    await take_step(connection, await place(connection), JobStep(JobState.RUNNING), LATER)
    assert (await job(connection)).started_at == NOW


async def test_the_wait_grows_until_an_attempt_leaves_a_checkpoint(connection: AsyncConnection) -> None:
    for attempt, crashes in ((1, 1), (2, 2), (3, 1), (4, 2)):
        await place(connection)
        if attempt == 3:
            await checkpoint(connection, attempt)
        await take_step(connection, await abort(connection), TRY_AGAIN, NOW)
        queued = await job(connection)
        assert (queued.restarts, queued.crashes) == (attempt, crashes)
        assert queued.not_before == NOW + timedelta(seconds=0.2 * crashes)


async def test_an_attempt_that_drained_costs_neither_a_restart_nor_a_wait(connection: AsyncConnection) -> None:
    step = JobStep(JobState.QUEUED, "a node of the gang is draining", attempt_state=JobState.PAUSED)
    await place(connection)
    await take_step(connection, await abort(connection), step, LATER)
    queued = await job(connection)
    assert (queued.state, queued.restarts, queued.crashes, queued.not_before) == (JobState.QUEUED, 0, 0, None)
    assert queued.queued_at == LATER
    gang = await attempts.gang(connection, queued)
    assert (gang.attempt.state, gang.attempt.ended_at) == (JobState.PAUSED, LATER)


async def test_a_checkpoint_that_workers_could_not_read_is_verified_before_the_next_attempt(
    connection: AsyncConnection,
) -> None:
    manifest = await checkpoint(connection, 1)
    await place(connection, manifest)
    await take_step(connection, accusing(await abort(connection)), TRY_AGAIN, NOW)
    queued = await job(connection)
    assert queued.not_before == NOW + timedelta(seconds=VERIFY_S)
    assert "the master verifies the checkpoint at step 10, which trainer-1 could not read" in (queued.waiting_for or "")
    assert queued.avoid == ("trainer-1",)
    assert await checkpoints.due_for_verification(connection, NOW) == [("admin", "toy-1", manifest)]
    assert (await events.of_job(connection, "toy-1"))[-2].kind == "checkpoint"


async def test_nobody_waits_for_a_checkpoint_that_is_gone(connection: AsyncConnection) -> None:
    manifest = await checkpoint(connection, 1)
    await place(connection, manifest)
    gang = accusing(await abort(connection))
    await checkpoints.remove(connection, "toy-1", manifest)
    await take_step(connection, gang, TRY_AGAIN, NOW)
    queued = await job(connection)
    assert queued.not_before == NOW + timedelta(seconds=0.2)
    assert queued.avoid is None


async def test_a_checkpoint_is_not_in_doubt_while_the_gang_still_stops(connection: AsyncConnection) -> None:
    manifest = await checkpoint(connection, 1)
    gang = accusing(await place(connection, manifest))
    await take_step(connection, gang, JobStep(JobState.STOPPING, "damaged", stop=StopMode.ABORT), NOW)
    assert await checkpoints.due_for_verification(connection, LATER) == []


async def test_the_workers_of_a_lost_node_end_and_those_of_others_continue(connection: AsyncConnection) -> None:
    await place(connection)
    loss = await lose_workers(connection, "trainer-0", "node trainer-0 was lost", LATER, nobody)
    assert loss == NodeLoss({"toy-1"}, {})
    lost, other = (await attempts.gang(connection, await job(connection))).workers
    assert lost.state is WorkerState.LOST
    assert lost.failure is not None
    assert (lost.failure.message, lost.failure.at) == ("node trainer-0 was lost", LATER)
    assert other.state is WorkerState.ASSIGNED
    assert await lose_workers(connection, "trainer-0", "again", LATER, nobody) == NodeLoss(set(), {})


@pytest.mark.parametrize("state", WorkerState)
@pytest.mark.parametrize("exit_code", [None, 0, 1, -9, STOPPED_STATUS])
async def test_the_database_knows_like_the_life_cycle_who_has_left_alone(
    connection: AsyncConnection, state: WorkerState, exit_code: int | None
) -> None:
    first, _ = (await place(connection)).workers
    await workers.change(connection, first, state=state, exit_code=exit_code)
    expected = has_left_alone(replace(first, state=state, exit_code=exit_code))
    assert await workers.has_any_left_alone(connection, "toy-1", 1, ()) is expected
    assert not await workers.has_any_left_alone(connection, "toy-1", 1, {Role.TRAINER})
    assert not await workers.has_any_left_alone(connection, "toy-1", 2, ())


async def test_a_gang_breaks_once_if_it_stops_in_order(connection: AsyncConnection) -> None:
    gang = await place(connection)
    assert await broken_gangs(connection, gang.workers[:1], nobody) == {}, "it does not stop"
    await take_step(connection, gang, JobStep(JobState.STOPPING, stop=StopMode.PAUSE), NOW)
    first, second = (await attempts.gang(connection, await job(connection))).workers
    assert await broken_gangs(connection, [first], lambda _: {Role.TRAINER}) == {}, "it continues without the worker"
    assert await broken_gangs(connection, [first], nobody) == {"toy-1": {"trainer-0", "trainer-1"}}
    loss = await lose_workers(connection, "trainer-0", "node trainer-0 was lost", LATER, nobody)
    assert loss.broken == {"toy-1": {"trainer-0", "trainer-1"}}
    assert await broken_gangs(connection, [second], nobody) == {}, "it is broken already"


async def test_a_job_that_cant_be_read_ends_once_with_all_that_is_its(connection: AsyncConnection) -> None:
    first, _ = (await place(connection)).workers
    await workers.end_all(connection, [first], WorkerState.SUCCEEDED)
    assert await fail_unreadable(connection, "toy-1", "its params can't be read", LATER) == (True, ["trainer-1"])
    gang = await attempts.gang(connection, await job(connection))
    assert (gang.job.state, gang.job.reason) == (JobState.FAILED, "its params can't be read")
    assert (gang.attempt.state, gang.attempt.ended_at) == (JobState.FAILED, LATER)
    assert [worker.state for worker in gang.workers] == [WorkerState.SUCCEEDED, WorkerState.LOST]
    assert await fail_unreadable(connection, "toy-1", "again", LATER) == (False, [])
    assert (await job(connection)).reason == "its params can't be read"
