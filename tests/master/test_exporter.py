"""The loop that exports jobs, with a scripted target."""

import logging
from collections import Counter
from pathlib import Path

import pytest

from rolecall.master.exporter import KEPT, Accepted, Exporter, Rejected
from rolecall.master.program import Master
from rolecall.master.store import jobs
from rolecall.spec.state import WorkerState

from .harness import ManualClock, on_master, one_trainer, still_master


class ScriptedTarget:
    """Rejects the jobs in `rejected` with their reasons, and raises for those in `broken`."""

    kind = "scripted"

    def __init__(self, master: Master) -> None:
        self.master = master
        self.is_live = False
        self.rejected: dict[str, str] = {}
        self.broken: set[str] = set()
        self.calls = Counter[str]()
        self.forgotten: list[str] = []
        self.away = False

    async def export(self, job: str) -> Accepted | Rejected:
        self.calls[job] += 1
        if job in self.broken:
            raise ValueError("of a library")
        if job in self.rejected:
            return Rejected(self.rejected[job], is_away=self.away)
        async with self.master.database.read() as connection:
            return Accepted((await jobs.get(connection, job)).ended_at, "done")

    async def forget(self, job: str) -> None:
        self.forgotten.append(job)

    def close(self) -> None:
        pass


def exporter(master: Master, target: ScriptedTarget) -> Exporter:
    own = master.database, master.instruments, master.clock
    return Exporter(target=target, pause_s=1.0, database=own[0], instruments=own[1], clock=own[2])


async def ended_jobs(folder: Path, clock: ManualClock, count: int) -> list[str]:
    async with on_master(folder, clock=clock) as client:
        found = [(await client.submit())["id"] for _ in range(count)]
        for job in found:
            clock.advance(1)
            await client.user("POST", f"/jobs/{job}/cancel")
        return found


@pytest.mark.slow
async def test_jobs_that_are_rejected_delay_no_others(tmp_path: Path) -> None:
    clock = ManualClock()
    ended = await ended_jobs(tmp_path, clock, 9)
    async with still_master(tmp_path, clock) as master:
        target = ScriptedTarget(master)
        target.broken, target.rejected = {ended[0]}, {job: "no" for job in ended[1:6]}
        loop = exporter(master, target)
        for _ in range(5):
            await loop.export_due()
        assert [target.calls[job] for job in ended] == [1] * 9, "each waits for its retry"
        clock.advance(2)
        target.broken, target.rejected = set(), {}
        assert await loop.export_due()
        assert [target.calls[job] for job in ended] == [2] * 6 + [1] * 3
        assert await loop.export_due()
        assert target.calls.total() == 15, "nothing is due any more"
        assert sorted(set(target.forgotten)) == sorted(ended)


@pytest.mark.slow
async def test_an_unavailable_target_is_tried_three_times_in_a_pass(tmp_path: Path) -> None:
    clock = ManualClock()
    ended = await ended_jobs(tmp_path, clock, 8)
    async with still_master(tmp_path, clock) as master:
        target = ScriptedTarget(master)
        target.away, target.rejected = True, dict.fromkeys(ended, "away")
        loop = exporter(master, target)
        assert not await loop.export_due()
        assert set(target.calls) == set(ended[:3])
        clock.advance(2)
        assert not await loop.export_due()
        assert set(target.calls) == set(ended[:6]), "those that have not failed come first"


@pytest.mark.slow
async def test_a_job_that_is_paused_is_exported_once_more_and_forgotten(tmp_path: Path) -> None:
    async with on_master(tmp_path) as client:
        node = await one_trainer(client)
        job = (await client.submit(roles={"parameter-server": 0, "trainer": 1}))["id"]
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        await client.until(job, "running")
        target = ScriptedTarget(client.master)
        target.is_live = True
        loop = exporter(client.master, target)
        for count in (1, 2):
            assert await loop.export_due()
            assert (target.calls[job], target.forgotten) == (count, [])
        await client.user("POST", f"/jobs/{job}/pause")
        await node.say(worker, WorkerState.STOPPED)
        await client.until(job, "paused")
        for _ in range(3):
            assert await loop.export_due()
        assert (target.calls[job], target.forgotten) == (3, [job])


async def test_each_reason_is_logged_once_and_what_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    first, second, third = await ended_jobs(tmp_path, clock, 3)
    async with still_master(tmp_path, clock) as master:
        target = ScriptedTarget(master)
        target.rejected = {first: "too large", second: "away", third: "away"}
        loop = exporter(master, target)
        with caplog.at_level(logging.WARNING):
            for _ in range(4):
                await loop.export_due()
                clock.advance(60)
            said = [record.getMessage() for record in caplog.records]
            assert len(said) == 2, said
            assert f"job {first} can't be exported (scripted): too large" in said[0]
            assert f"job {second} can't be exported (scripted): away" in said[1]
            clock.advance(KEPT.total_seconds())
            assert await loop.export_due()
        dropped = [record.getMessage() for record in caplog.records][2:]
        assert sorted(line.split()[1] for line in dropped) == sorted([first, second, third])
        assert f"job {first} is no longer exported (scripted), after 4 failures: too large" in dropped


async def test_a_deleted_job_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    (job,) = await ended_jobs(tmp_path, clock, 1)
    async with still_master(tmp_path, clock) as master:
        target = ScriptedTarget(master)
        target.rejected = {job: "no"}
        loop = exporter(master, target)
        assert not await loop.export_due()
    async with on_master(tmp_path, clock=clock) as client:
        loop.database = client.master.database
        await client.user("DELETE", f"/jobs/{job}")
        clock.advance(2)
        assert await loop.export_due()
        assert target.calls[job] == 1
