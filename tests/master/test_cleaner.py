"""The cleaner alone, with a clock that the test sets. `test_deletion` tests it in a master."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import ColumnElement, Table, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from tests.master.test_deletion import manifest, rows

from rolecall.master import cleaner
from rolecall.master.blobs import Blobs
from rolecall.master.cleaner import Cleaner
from rolecall.master.clock import Clock
from rolecall.master.retention import RetentionPolicy
from rolecall.master.signals import Signal
from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.store import (
    artifacts,
    attempts,
    audit,
    checkpoints,
    deletion,
    events,
    idempotency,
    jobs,
    schema,
    terms,
)
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.streams import Streams
from rolecall.spec.access import AuditEntry
from rolecall.spec.job import JobSpec
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.state import JobState
from rolecall.spec.wire import ArtifactNotice

START = datetime(2030, 1, 1, tzinfo=UTC)
PLAN = GangPlan(workers=(WorkerPlan(rank=0, role=Role.TRAINER, role_rank=0, node="trainer-0", threads=1),))
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
        self.blobs, self.streams = Blobs(data / "blobs", None, 10.0), Streams(data / "streams", 1 << 20, Clock())
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
        """The number of entries in the audit log."""
        async with self.database.read() as connection:
            return await connection.scalar(select(func.count()).select_from(schema.audit)) or 0

    def entries(self) -> int:
        return len(list((self.data / "streams").iterdir())) + len(list((self.data / "blobs").iterdir()))


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def policy(**given: Any) -> RetentionPolicy:
    defaults: dict[str, Any] = {"jobs": None, "checkpoints": 2, "finished_checkpoints": None, "audit": None}
    return RetentionPolicy(**(defaults | given))


@asynccontextmanager
async def in_world(tmp_path: Path, given: RetentionPolicy) -> AsyncGenerator[World]:
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


async def unavailable(*_: Any) -> None:
    raise OSError("the store is unavailable")


async def add_two_checkpoints(connection: AsyncConnection, world: World, tmp_path: Path) -> None:
    """Checkpoints of steps 2 and 3, which make the one of step 1 superfluous."""
    for step in (2, 3):
        await checkpoints.add(connection, "toy-1", manifest(step), world.now)
        (tmp_path / f"blobs/toy-1/1/{step}").write_text("x")


async def test_a_blob_that_can_not_be_deleted_at_once_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1)
        async with world.database.write() as connection:
            await add_two_checkpoints(connection, world, tmp_path)
            await connection.execute(update(schema.attempts).values(ended_at=None))  # It runs: no sweep yet.
        with monkeypatch.context() as patched:
            patched.setattr(Blobs, "delete", unavailable)
            assert not await world.cleaner.clean()
        assert (tmp_path / "blobs/toy-1/1/1").exists()
        assert await world.cleaner.clean()
        assert not (tmp_path / "blobs/toy-1/1/1").exists()
        assert (tmp_path / "blobs/toy-1/1/2").exists()


async def test_what_a_killed_master_forgot_and_did_not_delete_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1)
        assert await world.cleaner.clean()
        async with world.database.write() as connection:
            await add_two_checkpoints(connection, world, tmp_path)
        world.cleaner.recorded("toy-1")
        with monkeypatch.context() as patched:
            patched.setattr(Blobs, "delete", unavailable)
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
                    reported = events.WorkerEvent(f"toy-1/1/0/{number}", START, f"reported {number}")
                    await events.add_once(connection, "toy-1", 1, [reported])
        await world.cleaner.clean()
        async with world.database.read() as connection:
            found = [event.message for event in await events.of_job(connection, "toy-1")]
        assert [text for text in found if text.startswith("own")] == [f"own {number}" for number in range(20, 30)]
        reported = [text for text in found if not text.startswith("own")]
        assert reported == [
            *(f"reported {number}" for number in range(9)),
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


async def test_an_unavailable_store_is_called_for_three_jobs_a_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    async def note(_: Blobs, job: str) -> None:
        called.append(job)
        await unavailable()

    monkeypatch.setattr(Blobs, "remove_job", note)
    async with in_world(tmp_path, policy(jobs=timedelta(days=1))) as world:
        await world.end_jobs(8, unswept=0)
        world.now += timedelta(days=2)
        for _ in range(2):
            assert not await world.cleaner.clean()
        assert len(called) == 6
        assert len(set(called)) == 6, "jobs that failed come after the others"


@pytest.mark.slow
async def test_a_job_whose_files_take_too_long_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = Blobs.remove_job

    async def hang(blobs: Blobs, job: str) -> None:
        if job == "toy-1":
            await asyncio.Event().wait()
        await remove(blobs, job)

    monkeypatch.setattr(Blobs, "remove_job", hang)
    async with in_world(tmp_path, policy(jobs=timedelta(days=1))) as world:
        await world.end_jobs(2, unswept=0)
        world.now += timedelta(days=2)
        monkeypatch.setattr(cleaner, "_STORE_S", 1.0)
        async with asyncio.timeout(20):
            assert not await world.cleaner.clean()
        assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["toy-1"]


async def test_blobs_that_are_still_referred_to_outlast_their_checkpoint(tmp_path: Path) -> None:
    """An artifact and a newer checkpoint can refer to the blob of an older checkpoint."""
    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1, unswept=0)
        shared = manifest(1).parts[0].model_copy(update={"blob": "1/shared"})
        async with world.database.write() as connection:
            for step, parts in ((2, (shared,)), (3, ()), (4, (shared,)), (5, ())):
                await checkpoints.add(
                    connection, "toy-1", manifest(step).model_copy(update={"parts": parts}), world.now
                )
            notice = ArtifactNotice(name="model", blob="1/1", size=1, sha256="0" * 64)
            await artifacts.put(connection, "toy-1", 1, notice, world.now)
        (tmp_path / "blobs/toy-1/1/shared").write_text("x")
        assert await world.cleaner.clean()
        async with world.database.read() as connection:
            assert [one.manifest.step for one in await checkpoints.of_job(connection, "toy-1")] == [5, 4]
        assert {path.name for path in files_below(tmp_path / "blobs")} == {"1", "shared"}


@pytest.mark.parametrize(("state", "kept"), [(JobState.RUNNING, [3, 2, 1]), (JobState.QUEUED, [3, 2])])
async def test_the_checkpoint_from_which_a_running_attempt_resumed_is_kept(
    tmp_path: Path, state: JobState, kept: list[int]
) -> None:
    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1, unswept=0)
        async with world.database.write() as connection:
            await connection.execute(update(schema.jobs).values(state=state, ended_at=None))
            await connection.execute(update(schema.attempts).values(resume_from=manifest(1)))
            for step in (2, 3):
                await checkpoints.add(connection, "toy-1", manifest(step), world.now)
        assert await world.cleaner.clean()
        async with world.database.read() as connection:
            assert [one.manifest.step for one in await checkpoints.of_job(connection, "toy-1")] == kept


async def test_an_attempt_that_loses_a_checkpoint_during_its_sweep_is_swept_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep has kept the blobs of that checkpoint."""
    sweep, sweeps = Blobs.sweep, 0

    async def overtaken(blobs: Blobs, job: str, number: int, known: set[str]) -> int:
        nonlocal sweeps
        if (sweeps := sweeps + 1) == 1:
            async with world.database.write() as connection:
                await checkpoints.remove(connection, job, manifest(1))
        return await sweep(blobs, job, number, known)

    monkeypatch.setattr(Blobs, "sweep", overtaken)
    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1)
        for _ in range(3):
            assert await world.cleaner.clean()
        assert sweeps == 2
        assert not files_below(tmp_path / "blobs")


async def test_a_checkpoint_of_a_job_that_is_deleted_meanwhile_is_no_failure(tmp_path: Path) -> None:
    async with in_world(tmp_path, policy()) as world:
        world.cleaner.recorded("toy-1")
        assert await world.cleaner.clean()


async def test_failed_passes_are_repeated_after_growing_pauses_and_a_success_resets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes: list[bool | Exception] = [False, OSError("a defect"), *[False] * 7, True, False]
    pauses: list[float] = []

    async def clean(_: Cleaner) -> bool:
        if isinstance(outcome := outcomes.pop(0), Exception):
            raise outcome
        return outcome

    async def note(_: asyncio.Event, timeout_s: float) -> None:
        pauses.append(timeout_s)
        if not outcomes:
            raise asyncio.CancelledError

    monkeypatch.setattr(Cleaner, "clean", clean)
    monkeypatch.setattr(cleaner, "wait", note)
    async with in_world(tmp_path, policy()) as world:
        with pytest.raises(asyncio.CancelledError):
            await world.cleaner.run()
        assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 1]
        assert world.cleaner.pulse.passes == 1


async def test_a_new_checkpoint_wakes_the_cleaner(tmp_path: Path) -> None:
    async with in_world(tmp_path, policy()) as world:
        await world.end_jobs(1, unswept=0)
        running = asyncio.create_task(world.cleaner.run())
        async with asyncio.timeout(20):
            while not world.cleaner.pulse.passes:
                await asyncio.sleep(0.01)
            async with world.database.write() as connection:
                for step in (2, 3):
                    await checkpoints.add(connection, "toy-1", manifest(step), world.now)
            world.cleaner.recorded("toy-1")
            while (tmp_path / "blobs/toy-1/1/1").exists():
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])
