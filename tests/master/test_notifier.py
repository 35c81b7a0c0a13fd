# pyright: standard
"""The number of tries of a webhook if the database or a receiver fails, and the webhooks of deleted jobs."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from rolecall.master.notifier import Notifier, Undelivered
from rolecall.master.program import Master
from rolecall.master.store import attempts, deletion, events, jobs
from rolecall.master.store.database import Database
from rolecall.master.store.records import NotificationRecord
from rolecall.master.webhooks import MAX_TRIES
from rolecall.spec.job import JobSpec
from rolecall.spec.state import JobState

from .harness import ManualClock, still_master
from .test_store import PLAN
from .test_webhooks import receiver


class Receivers:
    """Takes the place of the requests: it counts those of each job, and raises its `errors`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        self.errors: dict[str, Exception] = {}
        self.answers = asyncio.Event()
        self.answers.set()
        monkeypatch.setattr(Notifier, "_send", lambda _notifier, one: self._send(one))

    async def _send(self, one: NotificationRecord) -> None:
        self.sent.append(one.job)
        if one.job in self.errors:
            raise self.errors[one.job]
        await self.answers.wait()


async def end(master: Master, *names: str, notify: str = "https://h.example/x") -> None:
    """Cancel new jobs with webhooks."""
    async with master.database.write() as connection:
        for name in names:
            job = await jobs.add(connection, JobSpec(id=name, workload="toy", notify=notify), master.clock.now())
            await jobs.move(connection, job, JobState.CANCELLED, master.clock.now(), "cancelled by admin")


async def pending(master: Master) -> list[str]:
    async with master.database.read() as connection:
        return list((await connection.exec_driver_sql("SELECT job FROM notifications ORDER BY id")).scalars())


async def recorded(master: Master, job: str) -> list[str]:
    """The job's events about webhooks."""
    async with master.database.read() as connection:
        return [event.message for event in await events.of_job(connection, job) if event.kind == "webhook"]


def refuse_writes(monkeypatch: pytest.MonkeyPatch, allowed: int = 0) -> None:
    """Let all transactions of writers fail after the `allowed` ones."""
    write, left = Database.write, [None] * allowed

    @asynccontextmanager
    async def failing(database: Database) -> AsyncGenerator[object]:
        if not left:
            raise OperationalError("", None, Exception("database or disk is full"))
        left.pop()
        async with write(database) as connection:
            yield connection

    monkeypatch.setattr(Database, "write", failing)


async def test_nothing_is_sent_while_the_database_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receivers, clock = Receivers(monkeypatch), ManualClock()
    async with still_master(tmp_path, clock) as master:
        await end(master, "toy-1")
        with monkeypatch.context() as patch:
            refuse_writes(patch)
            for _ in range(3):
                with pytest.raises(OperationalError):
                    await master.notifier.deliver()
                clock.advance(1)
        assert receivers.sent == []
        await master.notifier.deliver()
        assert receivers.sent == ["toy-1"]
        assert await recorded(master, "toy-1") == ["webhook sent to https://h.example/***"]
        assert await pending(master) == []


async def test_a_webhook_whose_results_cannot_be_stored_is_sent_as_often_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receivers, clock = Receivers(monkeypatch), ManualClock()
    async with still_master(tmp_path, clock) as master:
        await end(master, "toy-1")
        for number in range(1, MAX_TRIES + 1):
            for _ in range(2):  # The second pass comes before the next try is due.
                with monkeypatch.context() as patch:
                    refuse_writes(patch, allowed=1)
                    await asyncio.gather(master.notifier.deliver(), return_exceptions=True)
                assert len(receivers.sent) == number
                clock.advance(1)
            clock.advance(7200)
        await master.notifier.deliver()
        assert len(receivers.sent) == MAX_TRIES
        (message,) = await recorded(master, "toy-1")
        assert message.endswith("given up: the result of try 8, the last one, was not stored")
        assert message in caplog.text
        assert await pending(master) == []


async def test_the_tries_of_a_failing_receiver_are_numbered_and_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receivers, clock = Receivers(monkeypatch), ManualClock()
    receivers.errors["toy-1"] = Undelivered("the response was 503")
    async with still_master(tmp_path, clock) as master:
        await end(master, "toy-1")
        for delay_s in (5, 30, 120, 600, 1800, 3600, 7200, 7200):
            await master.notifier.deliver()
            clock.advance(delay_s - 1)
            await master.notifier.deliver()
            clock.advance(1)
        assert len(receivers.sent) == MAX_TRIES
        logged = [record.getMessage() for record in caplog.records if "webhook" in record.getMessage()]
        failed = "webhook to https://h.example/*** failed (the response was 503) in try"
        assert logged == [f"job toy-1: {failed} {n}{', the last one' if n == 8 else ''}" for n in range(1, 9)]
        assert await recorded(master, "toy-1") == [f"{failed} 8, the last one"]


async def test_an_error_of_one_delivery_leaves_no_other_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receivers = Receivers(monkeypatch)
    receivers.errors["toy-1"] = RuntimeError("unexpected")
    receivers.answers.clear()
    async with still_master(tmp_path, ManualClock()) as master:
        await end(master, "toy-1", "toy-2")
        one_pass = asyncio.create_task(master.notifier.deliver())
        async with asyncio.timeout(5):
            while len(receivers.sent) < 2:
                await asyncio.sleep(0.01)
        await asyncio.wait([one_pass], timeout=0.1)
        assert not one_pass.done(), "the next pass would send the second webhook again"
        receivers.answers.set()
        with pytest.raises(RuntimeError, match="unexpected"):
            await one_pass
        assert await pending(master) == ["toy-1"]
        assert await recorded(master, "toy-2") == ["webhook sent to https://h.example/***"]


async def test_each_end_of_a_retried_job_has_its_own_webhook_id(tmp_path: Path) -> None:
    clock = ManualClock()
    with receiver() as (port, received):
        own = {"webhook_hosts": (f"localhost:{port}",), "webhook_networks": ("127.0.0.0/8", "::1/128")}
        async with still_master(tmp_path, clock, **own) as master:
            await end(master, "toy-1", notify=f"http://localhost:{port}/")
            await master.notifier.deliver()
            clock.advance(60)
            async with master.database.write() as connection:
                await jobs.renew(connection, await jobs.get(connection, "toy-1"), clock.now(), "retried")
                again = await jobs.get(connection, "toy-1")
                await jobs.move(connection, again, JobState.CANCELLED, clock.now(), "cancelled again")
            await master.notifier.deliver()
    ids = [headers["webhook-id"] for headers, _ in received]
    assert len(ids) == len(set(ids)) == 2, "receivers take a message with the same id for a repetition"


async def test_a_deleted_job_has_no_files_but_its_webhook_is_sent(tmp_path: Path) -> None:
    clock = ManualClock()
    with receiver(503) as (port, received):
        own = {"webhook_hosts": (f"localhost:{port}",), "webhook_networks": ("127.0.0.0/8", "::1/128")}
        async with still_master(tmp_path, clock, **own) as master:
            async with master.database.write() as connection:
                spec = JobSpec(id="toy-1", workload="toy", notify=f"http://localhost:{port}/", labels={"team": "a"})
                job = await jobs.add(connection, spec, clock.now())
                await attempts.begin(connection, job, PLAN, None, clock.now())
                # Before its end, as `rolecall delete --force` does it.
                await deletion.mark(connection, job.id, clock.now())
                assert await jobs.fail_unreadable(connection, job.id, "a bug", clock.now())
            files = tmp_path / "blobs/toy-1/1"
            files.mkdir(parents=True)
            (files / "model").write_text("x")
            for count in (1, 2):  # The receiver fails once.
                assert await master.cleaner.clean()
                assert not files.exists()
                await master.notifier.deliver()
                assert len(received) == count
                clock.advance(10)
            assert await pending(master) == []
            await master.cleaner.clean()
            async with master.database.read() as connection:
                assert not await deletion.is_marked(connection, "toy-1")
    data = json.loads(received[-1][1])["data"]
    assert (data["id"], data["state"], data["reason"], data["labels"]) == ("toy-1", "failed", "a bug", {"team": "a"})
