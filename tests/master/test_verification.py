# pyright: reportPrivateUsage=false
"""The master's findings at the blob store, reading after reading, about a checkpoint that a worker could not read."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rolecall.master import verification
from rolecall.master.program import Master
from rolecall.master.store import checkpoints, deletion, events, jobs
from rolecall.master.verification import AGAIN, CONFIRM_AFTER
from rolecall.spec.job import JobSpec
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.spec.state import JobState

from .harness import ManualClock, still_master, verify_all

JOB = "toy-1"
NAMES = ("trainer-0", "trainer-1")


@dataclass
class Store:
    """A job's checkpoints of two parts, on a master of which only the verification runs, when the test says so."""

    master: Master
    clock: ManualClock
    folder: Path

    async def add(self, step: int) -> None:
        parts: list[CheckpointPart] = []
        for name in NAMES:
            path, body = self.part(step, name), f"{name} at {step}".encode()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            digest = hashlib.sha256(body).hexdigest()
            parts.append(CheckpointPart(name=name, blob=f"1/{step}/{name}", size=len(body), sha256=digest))
        manifest = CheckpointManifest(attempt=1, step=step, parts=tuple(parts), position={})
        async with self.master.database.write() as connection:
            assert await checkpoints.add(connection, JOB, manifest, self.clock.now())

    def part(self, step: int, name: str) -> Path:
        return self.folder / JOB / "1" / str(step) / name

    async def accuse(self, step: int) -> None:
        """A worker reports the checkpoint, and the master verifies it."""
        async with self.master.database.write() as connection:
            found = await checkpoints.of_job(connection, JOB)
            (manifest,) = [one.manifest for one in found if one.manifest.step == step]
            await checkpoints.set_verification(connection, JOB, manifest, self.clock.now())
        await self.verify()

    async def verify(self, after_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        async with asyncio.timeout(30):
            await verify_all(self.master)

    async def doubts(self) -> dict[int, bool]:
        """For each checkpoint that the master knows, true if it waits for a verification."""
        async with self.master.database.read() as connection:
            found = await checkpoints.of_job(connection, JOB)
        return {one.manifest.step: one.verify_at is not None for one in found}

    async def messages(self) -> list[str]:
        async with self.master.database.read() as connection:
            return [one.message for one in await events.of_job(connection, JOB) if one.kind == "checkpoint"]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    clock = ManualClock()
    async with still_master(tmp_path, clock) as master:
        async with master.database.write() as connection:
            await jobs.add(connection, JobSpec(id=JOB, workload="toy", roles={Role.TRAINER: 2}), clock.now())
        yield Store(master, clock, tmp_path / "blobs")


async def test_a_user_whose_checkpoints_take_long_to_read_delays_no_other(store: Store) -> None:
    hours, now = 1 << 42, store.clock.now()
    part = CheckpointPart(name="trainer-0", blob="1/10/trainer-0", size=hours, sha256="0" * 64)
    async with store.master.database.write() as connection:
        for number in (1, 2):
            job = f"sparse-{number}"
            await jobs.add(connection, JobSpec(id=job, workload="toy", roles={Role.TRAINER: 1}), now, "mallory")
            manifest = CheckpointManifest(attempt=1, step=10, parts=(part,), position={})
            assert await checkpoints.add(connection, job, manifest, now)
            await checkpoints.set_verification(connection, job, manifest, now)
            path = store.folder / job / part.blob
            path.parent.mkdir(parents=True)
            with path.open("wb") as file:
                file.truncate(hours)
    (reading,) = await store.master.verifier.begin()
    for step in (10, 20):
        await store.add(step)
        await store.accuse(step)
    assert await store.doubts() == {10: False, 20: False}
    assert not reading.done()
    reading.cancel()


CONFIRM_S, AGAIN_S = CONFIRM_AFTER.total_seconds(), AGAIN.total_seconds()


async def test_a_part_that_vanishes_and_comes_back_costs_no_checkpoint(store: Store) -> None:
    for step in (10, 20):
        await store.add(step)
    path, aside = store.part(20, "trainer-1"), store.folder / "aside"
    path.rename(aside)
    await store.accuse(20)
    assert await store.doubts() == {20: True, 10: False}
    aside.rename(path)
    await store.verify(CONFIRM_S)
    assert await store.doubts() == {20: False, 10: False}
    path.rename(aside)
    await store.accuse(20)
    assert await store.doubts() == {20: True, 10: False}, "the earlier reading no longer counts"
    seems, intact, again = await store.messages()
    assert seems == again
    assert (
        "step 20 seems to be damaged, and the master reads it again: part 'trainer-1' (1/20/trainer-1) is gone" in seems
    )
    assert "is intact" in intact


async def test_damage_is_proven_by_two_readings_some_time_apart(store: Store) -> None:
    for step in (10, 20):
        await store.add(step)
    store.part(20, "trainer-1").write_bytes(b"short")
    await store.accuse(20)
    await store.accuse(20)
    await store.verify(CONFIRM_S - 1)
    assert await store.doubts() == {20: True, 10: False}, "another report doesn't make it certain"
    await store.verify(1)
    assert await store.doubts() == {10: False}
    assert len(await store.messages()) == 2


async def test_readings_that_differ_prove_nothing(store: Store) -> None:
    await store.add(10)
    part = store.part(10, "trainer-0")
    for length, after_s in ((1, 0), (2, CONFIRM_S), (3, AGAIN_S), (4, CONFIRM_S)):
        part.write_bytes(b"?" * length)
        await (store.verify(after_s) if after_s else store.accuse(10))
        assert await store.doubts() == {10: True}
    assert any("reads differently each time" in text for text in await store.messages())
    await store.verify(AGAIN_S)
    await store.verify(CONFIRM_S)
    assert await store.doubts() == {}


async def test_a_checkpoint_of_the_right_size_alone_replaces_none_that_is_gone(store: Store) -> None:
    """Else the whole one is forgotten while its mount is missing, and the damaged one when a reader finds it."""
    for step in (10, 20):
        await store.add(step)
    part = store.part(10, "trainer-0")
    part.write_bytes(b"?" * len(part.read_bytes()))
    path, aside = store.part(20, "trainer-1"), store.folder / "aside"
    path.rename(aside)
    await store.accuse(20)
    await store.verify(AGAIN_S)
    assert await store.doubts() == {20: True, 10: False}
    await store.accuse(10)
    await store.verify(CONFIRM_S)
    aside.rename(path)
    await store.verify(AGAIN_S)
    assert await store.doubts() == {20: False}


async def test_the_last_complete_checkpoint_outlives_that_its_files_are_gone(store: Store) -> None:
    """A folder can be half visible: the store is not empty, and every checkpoint of the job lacks a file."""
    for step in (10, 20):
        await store.add(step)
    gone = [store.part(10, "trainer-0"), store.part(20, "trainer-1")]
    for path in gone:
        path.rename(store.folder / f"aside-{path.name}")
    await store.accuse(20)
    await store.accuse(10)
    for _ in range(3):
        await store.verify(AGAIN_S)
        assert await store.doubts() == {20: True, 10: True}
    assert len(await store.messages()) == 2, "each is messages once"
    assert all("no other complete checkpoint; the master tries again" in text for text in await store.messages())
    gone[0].symlink_to(store.folder / "aside-trainer-0")
    await store.verify(AGAIN_S)
    assert await store.doubts() == {20: True, 10: True}, "a link is no file"
    gone[0].unlink()
    (store.folder / "aside-trainer-0").rename(gone[0])
    await store.verify(AGAIN_S)
    assert await store.doubts() == {20: True, 10: False}
    await store.verify(CONFIRM_S)
    await store.verify(AGAIN_S)
    assert await store.doubts() == {10: False}, "a complete one is left, so the other is forgotten"


async def test_the_checkpoints_of_a_deleted_job_are_not_verified(store: Store) -> None:
    """Nothing would come of it, and the job's row stays until the blob store has deleted its files."""
    await store.add(10)
    async with store.master.database.write() as connection:
        job = await jobs.summary(connection, JOB)
        (record,) = await checkpoints.of_job(connection, JOB)
        await checkpoints.set_verification(connection, JOB, record.manifest, store.clock.now())
        await jobs.move(connection, job, JobState.CANCELLED, store.clock.now(), "cancelled")
        await deletion.mark(connection, JOB, store.clock.now())
    assert await store.master.verifier.begin() == []


async def test_a_bounded_number_of_readings_is_remembered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of a reading may be deleted before the next reading of it."""
    monkeypatch.setattr(verification, "_MAX_READINGS", 1)
    for step in (5, 6):
        await store.add(step)
        store.part(step, NAMES[0]).write_bytes(b"damaged")
        await store.accuse(step)
    assert list(store.master.verifier._readings) == [f"{JOB}/1/6"]
