"""Passes of the placement without their loop. `test_load` tests what they cost, `test_scheduler` what they decide."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from rolecall.master.placement import WaitCause, Waiting
from rolecall.master.program import Master
from rolecall.master.store import jobs, nodes
from rolecall.master.store.records import JobSummary
from rolecall.master.waking import TICK_S
from rolecall.spec.job import JobSpec
from rolecall.spec.plan import GangPlan
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

from .harness import ManualClock, make_node, still_master

TRAINER = Role.TRAINER
NODE = make_node("trainer-0", TRAINER)
"""Two slots."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def master(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Master]:
    """A master of which no loop runs, with one node that is alive."""
    async with still_master(tmp_path, clock, backfill_window_s=3600.0) as master:
        async with master.database.write() as connection:
            await nodes.put(connection, NODE, clock.now())
        master.presence.register(NODE.name, NODE.started)
        master.presence.record_findings(NODE.name, ())
        yield master


def spec(name: str, trainers: int, priority: int = 0) -> JobSpec:
    return JobSpec(id=name, workload="toy", roles={TRAINER: trainers}, params={}, priority=priority)


async def queued(master: Master, name: str, trainers: int, priority: int = 0, back_off_s: float = 0.0) -> None:
    now = master.placer.clock.now()
    async with master.database.write() as connection:
        job = await jobs.add(connection, spec(name, trainers, priority), now)
        if back_off_s:
            await jobs.release(connection, job, now + timedelta(seconds=back_off_s))
    master.view.note(jobs=[name])


def waiting(master: Master, name: str) -> JobSummary:
    return master.view.queue[name]


async def state_of(master: Master, name: str) -> JobState:
    async with master.database.read() as connection:
        return (await jobs.get(connection, name)).state


async def test_queued_jobs_are_counted_by_what_they_wait_for(master: Master, clock: ManualClock) -> None:
    await queued(master, "runs", 1)
    clock.advance(1.0)
    await queued(master, "large", 2)
    await queued(master, "rests", 1, back_off_s=60.0)
    await master.view.refresh()
    assert master.placer.causes() == Counter({WaitCause.TURN: 2, WaitCause.BACK_OFF: 1})
    await master.placer.place()
    await master.view.refresh()
    assert master.placer.causes() == Counter({WaitCause.SLOTS: 1, WaitCause.BACK_OFF: 1})
    assert await state_of(master, "runs") is JobState.PLACED


async def test_the_next_pass_is_due_when_a_back_off_ends(master: Master, clock: ManualClock) -> None:
    await queued(master, "rests", 1, back_off_s=TICK_S / 2)
    assert await master.placer.place() == pytest.approx(TICK_S / 2)
    assert await state_of(master, "rests") is JobState.QUEUED
    clock.advance(TICK_S)
    await master.placer.place()
    assert await state_of(master, "rests") is JobState.PLACED
    assert await master.placer.place() == TICK_S, "nothing waits"


async def test_a_reason_has_current_figures_and_otherwise_those_that_are_stored(master: Master) -> None:
    await queued(master, "runs", 1)
    await master.placer.place()
    await queued(master, "large", 2)
    await master.placer.place()
    await master.view.refresh()
    job = waiting(master, "large")
    assert job.waiting_for
    assert master.placer.waiting_for(job) == "waiting for 2 trainer slots: 1 of 2 is free"
    async with master.database.write() as connection:
        await jobs.release(connection, job, job.queued_at)
    master.view.note(jobs=["large"])
    await master.view.refresh()
    assert master.placer.waiting_for(waiting(master, "large")) is None, "what is stored says that it may be placed"


async def test_a_preview_considers_the_jobs_that_go_first_and_changes_nothing(master: Master) -> None:
    await queued(master, "first", 2)
    after, before = [await master.placer.preview(spec("x", 1, priority), "me") for priority in (0, 1)]
    assert isinstance(after, Waiting)
    assert isinstance(before, GangPlan)
    assert [worker.node for worker in before.workers] == [NODE.name]
    await master.view.refresh()
    assert list(master.view.queue) == ["first"]
    await master.placer.place()
    assert await state_of(master, "first") is JobState.PLACED


async def _drain(master: Master, _: ManualClock) -> None:
    async with master.database.write() as connection:
        await nodes.set_draining(connection, NODE.name, True)


async def _restart(master: Master, clock: ManualClock) -> None:
    async with master.database.write() as connection:
        await nodes.put(connection, NODE.model_copy(update={"started": "second"}), clock.now())


async def _lose(_: Master, clock: ManualClock) -> None:
    clock.advance(3600.0)


@pytest.mark.parametrize("change", [_drain, _restart, _lose])
async def test_no_gang_begins_on_a_node_that_has_changed_since_the_snapshot(
    master: Master,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Master, ManualClock], Awaitable[None]],
) -> None:
    begin = master.placer._begin  # pyright: ignore[reportPrivateUsage]

    async def late(job: JobSummary, plan: GangPlan) -> bool:
        await change(master, clock)
        return await begin(job, plan)

    monkeypatch.setattr(master.placer, "_begin", late)
    await queued(master, "toy-1", 1)
    await master.placer.place()
    assert await state_of(master, "toy-1") is JobState.QUEUED
    await master.view.refresh()
    assert not master.view.taken()
