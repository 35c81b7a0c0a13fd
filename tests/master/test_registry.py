"""Registrations and heartbeats of two nodes with a gang, at a master whose loops stand still."""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rolecall.master import registry
from rolecall.master.catalogue import Catalogue
from rolecall.master.lifecycle import JobStep
from rolecall.master.program import Master
from rolecall.master.store import attempts, jobs, nodes
from rolecall.master.store.records import Gang
from rolecall.master.transitions import take_step
from rolecall.spec.errors import Conflict, NotFound
from rolecall.spec.job import JobSpec
from rolecall.spec.node import NodeSpec
from rolecall.spec.report import Failure, WorkerReport
from rolecall.spec.role import Role
from rolecall.spec.state import STOPPED_STATUS, JobState, StopMode, WorkerState
from rolecall.spec.wire import Desired, DesiredWorker, Heartbeat

from .harness import ManualClock, make_node, still_master

SERVER = make_node("server-0", Role.PARAMETER_SERVER, boot="m0")
TRAINER = make_node("trainer-0", Role.TRAINER, boot="m1")


@asynccontextmanager
async def on_master(data: Path, **values: Any) -> AsyncGenerator[tuple[Master, ManualClock]]:
    """A master with two live nodes and the job `toy-1`, whose rank 0 is placed on one and rank 1 on the other."""
    clock = ManualClock()
    async with still_master(data, clock, **values) as master:
        for node in (SERVER, TRAINER):
            await registry.register(master, node)
            await beat(master, node)
        async with master.database.write() as connection:
            roles = {Role.PARAMETER_SERVER: 1, Role.TRAINER: 1}
            await jobs.add(connection, JobSpec(id="toy-1", workload="toy", roles=roles), clock.now())
        master.waking.queued("toy-1")
        await master.placer.place()
        yield master, clock


async def beat(master: Master, node: NodeSpec, *reports: WorkerReport) -> list[DesiredWorker]:
    """The workers in the answer to a node's heartbeat."""
    heartbeat = Heartbeat(started=node.started, workers=reports)
    await registry.receive(master, node.name, heartbeat)
    answer = await registry.next_answer(master, node.name, heartbeat)
    return list(Desired.model_validate_json(answer.body).workers)


def report(rank: int, state: WorkerState = WorkerState.STARTING, **values: Any) -> WorkerReport:
    given: dict[str, Any] = {"job": "toy-1", "attempt": 1, "rank": rank, "state": state, "pid": 100 + rank}
    return WorkerReport(**(given | values))


async def gang(master: Master) -> Gang:
    async with master.database.read() as connection:
        return await attempts.gang(connection, await jobs.get(connection, "toy-1"))


async def test_a_node_that_registers_again_keeps_its_workers(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, _):
        moved = TRAINER.model_copy(update={"address": "10.9.9.9"})
        await registry.register(master, moved)
        assert [worker.launch.worker.node for worker in await beat(master, moved)] == ["trainer-0"]
        await master.view.refresh()
        assert master.view.nodes["trainer-0"].spec.address == "10.9.9.9"


async def test_a_restarted_node_has_lost_its_workers_and_its_earlier_incarnation_the_name(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, clock):
        await master.view.refresh()
        clock.advance(2)  # The node does not call again.
        second = TRAINER.model_copy(update={"started": "second"})
        await registry.register(master, second)
        await master.view.refresh()
        server, trainer = master.view.gangs["toy-1"].workers
        assert server.state is WorkerState.ASSIGNED
        assert trainer.state is WorkerState.LOST
        assert trainer.failure is not None
        assert trainer.failure.message == "node trainer-0 restarted"
        assert await beat(master, second) == []
        clock.advance(master.settings.node_timeout_s + 1)
        with pytest.raises(Conflict, match="the name trainer-0 is taken"):
            await registry.register(master, TRAINER)


async def test_a_node_that_leaves_late_does_not_remove_its_successor(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, clock):
        clock.advance(2)
        second = TRAINER.model_copy(update={"started": "second"})
        await registry.register(master, second)
        await registry.leave(master, TRAINER.name, TRAINER.started)
        assert await beat(master, second) == []
        await registry.leave(master, TRAINER.name, "second")
        with pytest.raises(NotFound, match="trainer-0 has not registered"):
            await beat(master, second)


async def test_a_node_that_does_not_say_its_incarnation_leaves(tmp_path: Path) -> None:
    """Nodes of release 0.1 don't."""
    async with on_master(tmp_path) as (master, _):
        await registry.leave(master, TRAINER.name)
        with pytest.raises(NotFound, match="trainer-0 has not registered"):
            await beat(master, TRAINER)


async def test_a_registration_that_is_not_committed_replaces_no_incarnation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError("the disk is full")

    async with on_master(tmp_path) as (master, clock):
        clock.advance(2)
        with monkeypatch.context() as patch:
            patch.setattr(nodes, "put", fail)
            with pytest.raises(OSError, match="the disk is full"):
                await registry.register(master, TRAINER.model_copy(update={"started": "second"}))
        assert not master.presence.is_replaced(TRAINER.started)


async def test_the_gang_meets_where_its_rank_0_said_first(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, _):
        (waiting,) = await beat(master, TRAINER, report(1, rendezvous_port=1))
        assert waiting.launch.rendezvous_port is None
        held = master.answers.ticket(TRAINER.name)
        for port in (4711, 4712):
            (server,) = await beat(master, SERVER, report(0, rendezvous_port=port))
            assert server.launch.rendezvous_port == 4711
        assert held.is_set(), "the other node's call is answered now"
        (trainer,) = await beat(master, TRAINER, report(1))
        assert trainer.launch.rendezvous_port == 4711


async def stop(master: Master, clock: ManualClock, mode: StopMode) -> None:
    found = await gang(master)
    async with master.database.write() as connection:
        await take_step(connection, found, JobStep(JobState.STOPPING, stop=mode), clock.now())
    master.waking.gang("toy-1", found.nodes)


@pytest.mark.parametrize("mode", [StopMode.CANCEL, StopMode.PAUSE])
async def test_a_gang_that_was_never_complete_stops_at_once(tmp_path: Path, mode: StopMode) -> None:
    """The node of a worker that has joined would let it wait for those that have not, which are killed."""
    async with on_master(tmp_path) as (master, clock):
        await beat(master, SERVER, report(0, WorkerState.RUNNING))
        await stop(master, clock, mode)
        (server,) = await beat(master, SERVER, report(0, WorkerState.RUNNING))
        assert server.stop is StopMode.ABORT
        # It joined while it was being cancelled, and the other one is killed.
        (trainer,) = await beat(master, TRAINER, report(1, WorkerState.RUNNING))
        assert trainer.stop is StopMode.ABORT
        assert (await gang(master)).attempt.stop is mode


async def restart(master: Master, clock: ManualClock) -> None:
    """The trainer's node dies, and its successor registers."""
    clock.advance(2)
    await registry.register(master, TRAINER.model_copy(update={"started": "second"}))


async def fail(master: Master, clock: ManualClock) -> None:
    failure = Failure(message="it lost its peers", at=clock.now())
    await beat(master, TRAINER, report(1, WorkerState.FAILED, exit_code=1, failure=failure))


async def be_killed(master: Master, _: ManualClock) -> None:
    await beat(master, TRAINER, report(1, WorkerState.STOPPED, exit_code=-signal.SIGKILL))


async def leave(master: Master, _: ManualClock) -> None:
    await registry.leave(master, TRAINER.name, TRAINER.started)


async def obey(master: Master, _: ManualClock) -> None:
    await beat(master, TRAINER, report(1, WorkerState.STOPPED, exit_code=STOPPED_STATUS))


@asynccontextmanager
async def stopping(data: Path, mode: StopMode) -> AsyncGenerator[tuple[Master, ManualClock]]:
    """As `on_master`, while a complete gang stops in this mode."""
    async with on_master(data) as (master, clock):
        await beat(master, SERVER, report(0, WorkerState.RUNNING))
        await beat(master, TRAINER, report(1, WorkerState.RUNNING))
        running = await gang(master)
        async with master.database.write() as connection:
            await take_step(connection, running, JobStep(JobState.RUNNING), clock.now())
        await stop(master, clock, mode)
        (server,) = await beat(master, SERVER, report(0, WorkerState.RUNNING))
        assert server.stop is mode
        yield master, clock


@pytest.mark.parametrize("mode", [StopMode.CANCEL, StopMode.PAUSE, StopMode.DRAIN, StopMode.DEADLINE])
@pytest.mark.parametrize("end", [restart, fail, be_killed, leave])
async def test_a_gang_that_can_not_leave_together_stops_at_once(
    tmp_path: Path, mode: StopMode, end: Callable[[Master, ManualClock], Awaitable[None]]
) -> None:
    """The others would wait in vain for a worker that ended alone, until their grace time is over."""
    async with stopping(tmp_path, mode) as (master, clock):
        held = master.answers.ticket(SERVER.name)
        await end(master, clock)
        assert held.is_set(), "the other node's call is answered now"
        (server,) = await beat(master, SERVER, report(0, WorkerState.RUNNING))
        assert server.stop is StopMode.ABORT
        assert (await gang(master)).attempt.stop is mode


@pytest.mark.parametrize("mode", [StopMode.ABORT, StopMode.COMPLETE])
@pytest.mark.parametrize("end", [restart, fail, be_killed, leave])
async def test_a_gang_that_does_not_save_asks_nobody_again(
    tmp_path: Path, mode: StopMode, end: Callable[[Master, ManualClock], Awaitable[None]]
) -> None:
    async with stopping(tmp_path, mode) as (master, clock):
        held = master.answers.ticket(SERVER.name)
        await end(master, clock)
        assert not held.is_set()
        (server,) = await beat(master, SERVER, report(0, WorkerState.RUNNING))
        assert server.stop is mode


async def test_only_the_first_worker_that_leaves_alone_wakes_its_gang(tmp_path: Path) -> None:
    """Otherwise, each end in a large gang would have all its nodes ask again."""
    async with stopping(tmp_path, StopMode.DRAIN) as (master, clock):
        await be_killed(master, clock)
        held = master.answers.ticket(TRAINER.name)
        await beat(master, SERVER, report(0, WorkerState.STOPPED, exit_code=-signal.SIGKILL))
        assert not held.is_set()


async def test_a_gang_goes_on_to_save_while_its_workers_obey(tmp_path: Path) -> None:
    async with stopping(tmp_path, StopMode.PAUSE) as (master, clock):
        held = master.answers.ticket(SERVER.name)
        await obey(master, clock)
        assert not held.is_set()
        (server,) = await beat(master, SERVER, report(0, WorkerState.RUNNING))
        assert server.stop is StopMode.PAUSE


async def test_a_gang_goes_on_to_save_without_an_expendable_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expendable(*_: object) -> frozenset[Role]:
        return frozenset({Role.TRAINER})

    async with stopping(tmp_path, StopMode.PAUSE) as (master, clock):
        monkeypatch.setattr(Catalogue, "expendable", expendable)
        held = master.answers.ticket(SERVER.name)
        await be_killed(master, clock)
        assert not held.is_set()
        (server,) = await beat(master, SERVER, report(0, WorkerState.RUNNING))
        assert server.stop is StopMode.PAUSE


async def test_a_report_of_a_worker_that_the_node_does_not_run_changes_nothing(tmp_path: Path) -> None:
    async with on_master(tmp_path) as (master, _):
        before, failed = await gang(master), WorkerState.FAILED
        others = report(0, failed), report(1, failed, attempt=7), report(9, failed), report(1, failed, job="toy-9")
        await beat(master, TRAINER, *others, report(1, WorkerState.RUNNING))
        server, trainer = (await gang(master)).workers
        assert server == before.workers[0]
        assert (trainer.state, trainer.pid) == (WorkerState.RUNNING, 101)


async def test_a_heartbeat_is_news_once(tmp_path: Path) -> None:
    # Storing it changes what its own node should run. Even so, repetitions must not read the database.
    async with on_master(tmp_path) as (master, _):
        heartbeat = Heartbeat(started=SERVER.started, workers=(report(0, rendezvous_port=4711),))
        await registry.receive(master, SERVER.name, heartbeat)
        assert master.answers.is_recorded(SERVER.name, heartbeat)


async def test_an_entry_that_this_release_cant_read_is_logged_once_and_the_others_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with on_master(tmp_path) as (master, _):
        entries = [{"job": "toy-1", "rank": "the first"}, report(1, WorkerState.RUNNING).model_dump()]
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                heartbeat = Heartbeat.model_validate({"started": TRAINER.started, "workers": entries})
                await registry.receive(master, TRAINER.name, heartbeat)
        (message,) = caplog.messages
        assert "a part of node trainer-0's heartbeat is ignored" in message
        assert (await gang(master)).workers[1].state is WorkerState.RUNNING


@pytest.mark.parametrize(("heartbeat_s", "node_timeout_s"), [(0.1, 30.0), (5.0, 0.3)])
async def test_a_call_is_held_until_its_node_should_call_again_but_not_until_it_counts_as_lost(
    tmp_path: Path, heartbeat_s: float, node_timeout_s: float
) -> None:
    async with on_master(tmp_path, heartbeat_s=heartbeat_s, node_timeout_s=node_timeout_s) as (master, _):
        assert registry.longest_wait_s(master) == pytest.approx(0.1)
        first = await registry.next_answer(master, TRAINER.name, Heartbeat(started=TRAINER.started))
        waits = Heartbeat(started=TRAINER.started, seen=first.version, wait_s=30.0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(5):
            assert await registry.next_answer(master, TRAINER.name, waits) == first
        assert loop.time() - began >= 0.09
