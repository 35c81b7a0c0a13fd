"""Deletion and retention: what goes, when, and that a master that is killed in between finishes it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ColumnElement, Table, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.master.harness import ONE_TRAINER, Client, Node, failure, one_trainer

from rolecall.master.blobs import Blobs
from rolecall.master.cleaner import Cleaner
from rolecall.master.clock import Clock
from rolecall.master.retention import RetentionPolicy, superfluous
from rolecall.master.signals import Signal
from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.store import attempts, audit, checkpoints, deletion, events, idempotency, jobs, schema, terms
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.store.records import CheckpointRecord
from rolecall.master.streams import Streams
from rolecall.spec.access import AuditEntry
from rolecall.spec.job import JobSpec
from rolecall.spec.plan import CheckpointManifest, CheckpointPart, GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, StopMode, WorkerState

from .harness import on_master

START = datetime(2030, 1, 1, tzinfo=UTC)
PLAN = GangPlan(workers=(WorkerPlan(rank=0, role=Role.TRAINER, role_rank=0, node="trainer-0", threads=1),))


async def finished(client: Client, node: Node) -> str:
    """A job that has left a log, a checkpoint and an artifact."""
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await node.ship(worker, "log", b"hello\n")
    assert (await client.checkpoint(job, 1, 5)).status_code == 201
    stored = (await client.worker("PUT", job, 1, "/attempts/1/blobs/model", content=b"model")).json()
    await client.worker("POST", job, 1, "/attempts/1/artifacts", json={"name": "model", **stored})
    await node.say(worker, WorkerState.SUCCEEDED)
    await client.until(job, "succeeded")
    return job


async def gone(client: Client, data: Path, job: str) -> None:
    """Wait until nothing of the job is left."""
    assert (await client.user("GET", f"/jobs/{job}")).status_code == 404
    database = client.master.database
    async with asyncio.timeout(10):
        while (data / "streams" / job).exists() or (data / "blobs" / job).exists() or any(await rows(database)):
            await asyncio.sleep(0.02)


async def rows(database: Database) -> list[int]:
    """How many rows each table of jobs, and of what they have, has."""
    tables = [table for table in schema.metadata.sorted_tables if _is_of_jobs(table)]
    async with database.read() as connection:
        return [await connection.scalar(select(func.count()).select_from(table)) or 0 for table in tables]


def _is_of_jobs(table: Table) -> bool:
    return table is schema.jobs or any(_is_of_jobs(key.column.table) for key in table.foreign_keys)


@pytest.mark.slow
async def test_a_deleted_job_leaves_nothing(client: Client, tmp_path: Path) -> None:
    job = await finished(client, await one_trainer(client))
    assert (tmp_path / "streams" / job).exists()
    assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 204
    assert (await client.user("GET", "/jobs")).json()["jobs"] == []
    await gone(client, tmp_path, job)
    assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 404


@pytest.mark.slow
async def test_a_job_that_runs_is_deleted_by_force_alone(client: Client, tmp_path: Path) -> None:
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    refused = await client.user("DELETE", f"/jobs/{job}")
    assert refused.status_code == 409
    assert "?force=true" in refused.json()["detail"]
    for _ in range(2):
        assert (await client.user("DELETE", f"/jobs/{job}?force=true")).status_code == 204
    assert (await client.job(job))["state"] in {"running", "stopping"}
    (worker,) = await node.workers(1, StopMode.CANCEL)
    await node.say(worker, WorkerState.STOPPED)
    async with asyncio.timeout(10):
        while (await client.user("GET", f"/jobs/{job}")).status_code == 200:
            await asyncio.sleep(0.02)
    await gone(client, tmp_path, job)
    waiting = (await client.submit(roles={"trainer": 99}))["id"]
    assert (await client.user("DELETE", f"/jobs/{waiting}?force=true")).status_code == 204
    await gone(client, tmp_path, waiting)


@pytest.mark.slow
async def test_a_blob_store_that_is_away_delays_deletion_and_a_restart_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise OSError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "remove_job", away)
        async with on_master(tmp_path) as client:
            job = await finished(client, await one_trainer(client))
            assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 204
            assert (await client.user("DELETE", f"/jobs/{job}")).status_code == 204
            assert (await client.user("GET", f"/jobs/{job}")).status_code == 404
    assert (tmp_path / "blobs" / job).exists()
    async with on_master(tmp_path) as client:
        assert (tmp_path / "blobs" / job).exists() or not (tmp_path / "streams" / job).exists()
        await gone(client, tmp_path, job)


@pytest.mark.slow
async def test_left_overs_are_swept_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: Any) -> int:
        raise OSError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(Blobs, "sweep", away)
        async with on_master(tmp_path) as client:
            node = await one_trainer(client)
            job = (await client.submit(roles=ONE_TRAINER, max_restarts=0))["id"]
            (worker,) = await node.workers()
            await node.say(worker, WorkerState.RUNNING)
            await client.worker("PUT", job, 1, "/attempts/1/blobs/never-closed", content=b"a part")
            await node.say(worker, WorkerState.FAILED, failure=failure())
            await client.until(job, "failed")
    (cut_off,) = [path.parent / ".upload-of-a-killed-master" for path in (tmp_path / "blobs").rglob("never-closed")]
    cut_off.write_bytes(b"half")
    async with on_master(tmp_path):
        async with asyncio.timeout(10):
            while [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]:
                await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_prune_lists_and_deletes_what_ended_before(client: Client) -> None:
    node = await one_trainer(client)
    job = await finished(client, node)
    waiting = (await client.submit(roles={"trainer": 99}))["id"]
    body = {"ended_before": datetime.now(UTC).isoformat(), "dry_run": True}
    (shown,) = (await client.user("POST", "/jobs/prune", json=body)).json()["jobs"]
    assert (shown["id"], shown["state"]) == (job, "succeeded")
    assert shown["size"] == len(b"hello\n") + len(b"weights at 5") + len(b"model")
    nothing = await client.user("POST", "/jobs/prune", json=body | {"state": "failed"})
    assert nothing.json() == {"jobs": [], "size": 0}
    assert (await client.job(job))["state"] == "succeeded"
    assert (await client.user("POST", "/jobs/prune", json=body | {"dry_run": False})).json()["size"] > 0
    assert (await client.user("GET", f"/jobs/{job}")).status_code == 404
    assert (await client.job(waiting))["state"] == "queued"


def manifest(step: int, *, keep: bool = False) -> CheckpointManifest:
    part = CheckpointPart(name="part", blob=f"1/{step}", size=1, sha256="0" * 64)
    return CheckpointManifest(attempt=1, step=step, parts=(part,), position={}, keep=keep)


def records(*steps: int, kept: int = 0, doubted: int = 0) -> list[CheckpointRecord]:
    return [
        CheckpointRecord(
            manifest=manifest(step, keep=step == kept),
            created_at=START,
            verify_at=START if step == doubted else None,
        )
        for step in steps
    ]


def test_what_is_superfluous() -> None:
    def found(*given: Any, **values: Any) -> list[int]:
        return [one.step for one in superfluous(*given, **values)]

    assert found(records(5, 4, 3, 2, 1), 2) == [3, 2, 1]
    assert found(records(5, 4, 3, 2, 1, kept=2), 2) == [3, 1]
    assert found(records(5, 4, 3), 2, in_use=manifest(3)) == []
    assert found(records(5, 4, 3, doubted=5), 1) == [3], "the doubted one may turn out to be damaged"
    assert found(records(5), 1) == []


ALL = (schema.jobs, schema.attempts, schema.workers, schema.checkpoints, schema.events, schema.idempotency)


def _is(job: str) -> ColumnElement[bool]:
    return schema.jobs.c.id == job


async def _copy(connection: AsyncConnection, table: Table, names: list[str]) -> None:
    """Give all other jobs the rows that the first one has."""
    owner = table.c.id if table is schema.jobs else table.c.job
    found = (await connection.execute(select(table).where(owner == names[0]))).mappings()
    made_up = {"sequence", "id"} - ({"id"} if table is schema.jobs else set())
    rows = [{name: value for name, value in row.items() if name not in made_up} for row in found]
    keys = [owner.name, *(["key"] if "key" in table.c else [])]
    copies = [
        row | {key: f"key-{name}" if key == "key" else name for key in keys} for name in names[1:] for row in rows
    ]
    if copies:
        await connection.execute(insert(table), copies)


def called(at: datetime, job: str) -> AuditEntry:
    """An entry of the audit log."""
    return AuditEntry(id=0, at=at, token="admin", address="::1", action="POST /jobs", target=job, outcome=201)


class World:
    """The store and the cleaner of a master, with a clock that the test sets."""

    def __init__(self, data: Path, policy: RetentionPolicy) -> None:
        self.now = START
        self.set_back = timedelta(0)
        """By how much the time of day was corrected."""
        self.data = data
        self.database = Database(sqlite_url(data / "test.db"))
        self.blobs, self.streams = Blobs(data / "blobs", None, 10.0), Streams(data / "streams", 1 << 20, time.monotonic)
        self.cleaner = self.new_cleaner(policy)
        self.count = 0

    def new_cleaner(self, policy: RetentionPolicy) -> Cleaner:
        """The cleaner of a master that has just started."""
        return Cleaner(
            database=self.database,
            blobs=self.blobs,
            streams=self.streams,
            policy=policy,
            garbage=Signal(),
            clock=Clock(lambda: self.now, self.monotonic),
        )

    def monotonic(self) -> float:
        """The seconds that have passed."""
        return (self.now + self.set_back - START).total_seconds()

    async def end_jobs(self, count: int, *, unswept: int | None = None) -> None:
        """Store jobs that have succeeded now, with all that they leave.

        The first `unswept` of them, by default all, have files that no row refers to. The others' are deleted already.
        """
        names = [f"toy-{number}" for number in range(self.count + 1, self.count + count + 1)]
        self.count += count
        async with self.database.write() as connection:
            first = await jobs.add(connection, JobSpec(id=names[0], workload="toy", roles={Role.TRAINER: 1}), self.now)
            await attempts.begin(connection, first, PLAN, None, self.now)
            await checkpoints.add(connection, first.id, manifest(1), self.now)
            await idempotency.remember(connection, "admin", f"key-{first.id}", "digest", first.id, self.now)
            await connection.execute(update(schema.jobs).values(state=JobState.SUCCEEDED).where(_is(first.id)))
            await connection.execute(update(schema.jobs).values(ended_at=self.now).where(_is(first.id)))
            await connection.execute(update(schema.attempts).values(ended_at=self.now))
            for table in ALL:
                await _copy(connection, table, names)
            await audit.add(connection, [called(self.now, name) for name in names])
            swept = [] if unswept is None else names[unswept:]
            await connection.execute(update(schema.attempts).where(schema.attempts.c.job.in_(swept)).values(swept=True))
        for name in names:
            self._leave(name)
        for name in names[:unswept]:
            (self.data / f"blobs/{name}/1/.upload-half").write_text("x")

    def _leave(self, job: str) -> None:
        for path in (f"streams/{job}/1/0/log.txt", f"blobs/{job}/1/1"):
            (self.data / path).parent.mkdir(parents=True)
            (self.data / path).write_text("x")

    async def audited(self) -> int:
        """How many entries the audit log has."""
        async with self.database.read() as connection:
            return await connection.scalar(select(func.count()).select_from(schema.audit)) or 0

    def entries(self) -> int:
        return len(list((self.data / "streams").iterdir())) + len(list((self.data / "blobs").iterdir()))


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def policy(**given: Any) -> RetentionPolicy:
    return RetentionPolicy(**({"jobs": None, "checkpoints": 2, "finished_checkpoints": None, "audit": None} | given))


@asynccontextmanager
async def in_world(tmp_path: Path, given: RetentionPolicy) -> AsyncIterator[World]:
    world = World(tmp_path, given)
    await world.database.migrate()
    try:
        yield world
    finally:
        await world.database.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_day_of_short_jobs_leaves_a_bounded_rest(tmp_path: Path) -> None:
    """10,008 jobs, hour by hour: what stays is the last three hours', whatever went before."""
    per_hour, hours, kept = 417, 24, 3
    unswept = 40  # Each job's sweep has transactions of its own: most of the time of this test, if all had one.

    async with in_world(tmp_path, policy(jobs=timedelta(hours=kept), audit=timedelta(hours=kept))) as world:
        most = 0
        for _ in range(hours):
            await world.end_jobs(per_hour, unswept=unswept)
            world.now += timedelta(hours=1, seconds=1)
            assert await world.cleaner.clean()
            most = max(most, *await rows(world.database), await world.audited())
            assert world.entries() <= 2 * kept * per_hour
        assert most <= 4 * kept * per_hour, "four events each"
        world.now += timedelta(days=1)
        assert await world.cleaner.clean()
        assert not any(await rows(world.database))
        assert not await world.audited()
        assert world.entries() == 0


async def test_a_clock_that_is_set_back_keeps_no_old_jobs(tmp_path: Path) -> None:
    async with in_world(tmp_path, policy(jobs=timedelta(hours=3))) as world:
        await world.cleaner.clean()
        world.now -= timedelta(days=30)
        world.set_back += timedelta(days=30)
        await world.end_jobs(1)
        world.now += timedelta(hours=3, seconds=1)
        await world.cleaner.clean()
        assert world.entries() == 0


async def test_the_key_of_a_job_that_is_marked_for_deletion_is_free(tmp_path: Path) -> None:
    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(3)
        async with world.database.write() as connection:
            await deletion.mark(connection, "toy-1", world.now)
            later = world.now + timedelta(seconds=1)
            await deletion.mark_ended(connection, ["toy-2"], later, later)
            await deletion.mark_ended(connection, ["toy-3"], START, later)  # ended no earlier than that: not marked
            found = [
                await idempotency.job_of(connection, "admin", f"key-{job}", "digest")
                for job in ("toy-1", "toy-2", "toy-3")
            ]
        assert found == [None, None, "toy-3"]


async def test_checkpoints_of_jobs_that_succeeded_age_out_and_keys_expire(tmp_path: Path) -> None:
    async with in_world(tmp_path, policy(finished_checkpoints=timedelta(days=7))) as world:
        await world.end_jobs(1)
        world.now += timedelta(hours=23)
        await world.cleaner.clean()
        assert (tmp_path / "blobs/toy-1/1/1").exists()
        assert not (tmp_path / "blobs/toy-1/1/.upload-half").exists()
        world.now += timedelta(days=7)
        await world.cleaner.clean()
        assert not (tmp_path / "blobs/toy-1/1/1").exists()
        async with world.database.read() as connection:
            assert await checkpoints.of_job(connection, "toy-1") == []
            assert (await events.of_job(connection, "toy-1"))[-1].message.startswith(
                "the checkpoint at step 1 is deleted"
            )
            assert await idempotency.job_of(connection, "admin", "key-toy-1", "another digest") is None
            assert (await jobs.get(connection, "toy-1")).state is JobState.SUCCEEDED


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.CANCELLED])
async def test_the_newest_checkpoints_of_a_job_that_may_be_retried_never_age_out(
    tmp_path: Path, state: JobState
) -> None:
    async with in_world(tmp_path, policy(finished_checkpoints=timedelta(days=7))) as world:
        await world.end_jobs(1)
        async with world.database.write() as connection:
            await connection.execute(update(schema.jobs).values(state=state).where(_is("toy-1")))
            for step in (2, 3):
                await checkpoints.add(connection, "toy-1", manifest(step), world.now)
        world.now += timedelta(days=30)
        await world.cleaner.clean()
        async with world.database.read() as connection:
            assert [one.manifest.step for one in await checkpoints.of_job(connection, "toy-1")] == [3, 2]


async def test_a_master_that_no_longer_leads_deletes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may learn of that at any moment, and another one may need what it wanted to delete."""
    async with in_world(tmp_path, policy(jobs=timedelta(days=1))) as world:
        async with world.database.write() as connection:
            world.database.fence(await terms.begin(connection, "this master", world.now))
        await world.end_jobs(2)
        assert await world.cleaner.clean()
        async with world.database.write() as connection:
            for step in (2, 3, 4):
                await checkpoints.add(connection, "toy-1", manifest(step), world.now)
                (tmp_path / f"blobs/toy-1/1/{step}").write_text("x")
            await deletion.mark(connection, "toy-2", world.now)
        before = files_below(tmp_path / "blobs")
        collect = Cleaner._collect  # pyright: ignore[reportPrivateUsage]
        rival = Database(sqlite_url(tmp_path / "test.db"))

        async def overtaken(cleaner: Cleaner, job: str) -> None:
            async with rival.write() as connection:
                await terms.begin(connection, "another master", world.now)
            await collect(cleaner, job)

        with monkeypatch.context() as patched:
            patched.setattr(Cleaner, "_collect", overtaken)
            world.cleaner.recorded("toy-1")
            with pytest.raises(LeadershipLost):
                await world.cleaner.clean()
        world.cleaner.recorded("toy-1")
        with pytest.raises(LeadershipLost):
            await world.cleaner.clean()
        assert files_below(tmp_path / "blobs") == before
        await rival.close()


async def test_a_blob_that_can_not_be_deleted_at_once_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise OSError("the store is away")

    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1)
        async with world.database.write() as connection:
            for step in (2, 3):
                await checkpoints.add(connection, "toy-1", manifest(step), world.now)
                (tmp_path / f"blobs/toy-1/1/{step}").write_text("x")
            await connection.execute(update(schema.attempts).values(ended_at=None))  # It runs: no sweep yet.
        with monkeypatch.context() as patched:
            patched.setattr(Blobs, "delete", away)
            assert not await world.cleaner.clean()
        assert (tmp_path / "blobs/toy-1/1/1").exists()
        assert await world.cleaner.clean()
        assert not (tmp_path / "blobs/toy-1/1/1").exists()
        assert (tmp_path / "blobs/toy-1/1/2").exists()


async def test_what_a_killed_master_forgot_and_did_not_delete_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> None:
        raise OSError("the store is away")

    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1)
        assert await world.cleaner.clean()
        async with world.database.write() as connection:
            for step in (2, 3):
                await checkpoints.add(connection, "toy-1", manifest(step), world.now)
                (tmp_path / f"blobs/toy-1/1/{step}").write_text("x")
        world.cleaner.recorded("toy-1")
        with monkeypatch.context() as patched:
            patched.setattr(Blobs, "delete", away)
            assert not await world.cleaner.clean()
        world.cleaner = world.new_cleaner(policy())
        assert await world.cleaner.clean()
        assert {path.name for path in files_below(tmp_path / "blobs")} == {"2", "3"}


async def test_events_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 10)

    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1)
        async with world.database.write() as connection:
            for number in range(30):
                await events.add(connection, "toy-1", START, "checkpoint", f"own {number}")
                for _ in range(2):
                    told = events.WorkerEvent(f"toy-1/1/0/{number}", START, f"told {number}")
                    await events.add_once(connection, "toy-1", 1, [told])
        await world.cleaner.clean()
        async with world.database.read() as connection:
            found = [event.message for event in await events.of_job(connection, "toy-1")]
        assert [text for text in found if text.startswith("own")] == [f"own {number}" for number in range(20, 30)]
        told = [text for text in found if not text.startswith("own")]
        assert told == [
            *(f"told {number}" for number in range(9)),
            "workers reported 10 events: later ones are in their logs only",
        ]


@pytest.mark.slow
async def test_a_job_that_can_not_be_deleted_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = Blobs.remove_job

    async def stubborn(blobs: Blobs, job: str) -> None:
        if job in {"toy-1", "toy-2", "toy-3", "toy-4"}:
            raise OSError(f"{job} can't be deleted")
        await remove(blobs, job)

    monkeypatch.setattr(Blobs, "remove_job", stubborn)

    async with in_world(tmp_path, policy(jobs=timedelta(days=1))) as world:
        await world.end_jobs(60)
        world.now += timedelta(days=2)
        for _ in range(3):
            assert not await world.cleaner.clean()
        async with world.database.read() as connection:
            assert set(await deletion.marked(connection, 100)) == {"toy-1", "toy-2", "toy-3", "toy-4"}
