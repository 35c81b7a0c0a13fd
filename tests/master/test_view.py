"""The loops' view of the database: it forgets neither a place that is taken nor a row that can't be read."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.program import Master
from rolecall.master.store import jobs, nodes
from rolecall.master.store.database import Database
from rolecall.master.store.records import JobRecord
from rolecall.master.streams import StreamKey
from rolecall.spec.job import JobSpec
from rolecall.spec.report import ProgressLine
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

from .harness import line, make_node, still_master
from .test_deletion import START


@asynccontextmanager
async def on_still_master(data: Path) -> AsyncGenerator[Master]:
    """The parts of a master of which no loop runs, and one node that is alive."""
    async with still_master(data) as master:
        spec = make_node("trainer-0", Role.TRAINER)
        async with master.database.write() as connection:
            await nodes.put(connection, spec, START)
        master.presence.register(spec.name, spec.started)
        master.presence.record_findings(spec.name, ())
        yield master


async def queued(master: Master, name: str = "toy-1", **values: Any) -> JobRecord:
    async with master.database.write() as connection:
        job = await jobs.add(connection, JobSpec(id=name, workload="toy", roles={Role.TRAINER: 1}, **values), START)
    master.view.note(jobs=[name])
    return job


async def state_of(master: Master, job: str) -> JobState:
    async with master.database.read() as connection:
        return (await jobs.get(connection, job)).state


async def execute(master: Master, statement: str, **values: str) -> None:
    async with master.database.write() as connection:
        await connection.execute(text(statement), values)


def fail_behind(monkeypatch: pytest.MonkeyPatch, *, commits: bool) -> Callable[[], None]:
    """From now on transactions fail: behind the commit, or instead of it. Returns what ends that."""
    write = Database.write

    @asynccontextmanager
    async def failing(database: Database) -> AsyncGenerator[AsyncConnection]:
        async with write(database) as connection:
            yield connection
            if not commits:
                raise OperationalError("COMMIT", None, Exception("the connection is lost"))
        raise OperationalError("COMMIT", None, Exception("the connection is lost"))

    monkeypatch.setattr(Database, "write", failing)
    return lambda: monkeypatch.setattr(Database, "write", write)


async def test_the_places_of_a_gang_whose_commit_was_not_confirmed_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_still_master(tmp_path) as master:
        await queued(master)
        await master.view.refresh()
        goes_on = fail_behind(monkeypatch, commits=True)
        await master.placer.place()
        goes_on()
        await master.view.refresh()
        assert [worker.node for worker in master.view.taken()] == ["trainer-0"]
        assert not master.view.queue


async def test_a_job_that_is_set_aside_is_planned_no_more_until_it_is_repaired(tmp_path: Path) -> None:
    async with on_still_master(tmp_path) as master:
        job = await queued(master)
        params = json.dumps(job.params)
        await execute(master, "UPDATE jobs SET params = '[1, 2'")
        await master.placer.place()
        await master.view.refresh()
        assert list(master.view.unreadable) == [job.id]
        assert not master.view.queue
        await master.placer.place()
        await master.reconciler.reconcile()
        assert await state_of(master, job.id) is JobState.FAILED
        await execute(master, "UPDATE jobs SET params = :params", params=params)
        async with master.database.write() as connection:
            await jobs.renew(connection, await jobs.get(connection, job.id), START, "retried")
        master.view.note(jobs=[job.id])
        await master.placer.place()
        await master.reconciler.reconcile()
        assert await state_of(master, job.id) is JobState.PLACED


async def test_an_old_reason_sets_no_repaired_job_aside(tmp_path: Path) -> None:
    async with on_still_master(tmp_path) as master:
        job = await queued(master)
        master.view.set_aside(job.id, "params can't be read")
        await execute(master, "UPDATE jobs SET state = 'cancelled'")
        master.view.note(jobs=[job.id])
        await master.view.refresh()
        await execute(master, "UPDATE jobs SET state = 'queued'")
        master.view.note(jobs=[job.id])
        await master.view.refresh()
        assert list(master.view.queue) == [job.id]
        assert not master.view.unreadable


async def test_a_node_that_cant_be_read_holds_up_nothing_and_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_still_master(tmp_path) as master:
        await execute(master, "UPDATE nodes SET spec = '[1, 2'")
        removing = nodes.remove

        async def refused(connection: AsyncConnection, name: str) -> None:
            raise OperationalError("DELETE", None, Exception("database is locked"))

        monkeypatch.setattr(nodes, "remove", refused)
        await master.reconciler.reconcile()
        master.view.note(nodes=["another"])
        await master.view.refresh()
        assert list(master.view.unreadable_nodes) == ["trainer-0"]
        monkeypatch.setattr(nodes, "remove", removing)
        await master.reconciler.reconcile()
        assert not master.view.unreadable_nodes
        async with master.database.read() as connection:
            assert not (await nodes.load(connection)).unreadable


async def test_progress_whose_commit_failed_is_stored_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with on_still_master(tmp_path) as master:
        job = await queued(master)
        key = StreamKey(job.id, 1, 0, "progress")
        await master.streams.append(key, 0, _chunks(line("step", step=7)))
        await master.progress.ingest(master.database, key)
        goes_on = fail_behind(monkeypatch, commits=False)
        with pytest.raises(OperationalError):
            await master.reconciler.reconcile()
        goes_on()
        await master.reconciler.reconcile()
        async with master.database.read() as connection:
            assert (await jobs.get(connection, job.id)).progress.step == 7


async def _chunks(*lines: ProgressLine) -> AsyncIterator[bytes]:
    for one in lines:
        yield one.model_dump_json().encode() + b"\n"
