"""A worker that writes to its progress file whatever costs the master most."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import event
from tests.cpu_time import is_within
from tests.master.harness import ManualClock, line, turns_of_loop

from rolecall.master.clock import Clock
from rolecall.master.progress import ProgressBook
from rolecall.master.series import SeriesBook, StreamSeries
from rolecall.master.store import attempts, events, jobs
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import UserThreads
from rolecall.node.folder import Folder
from rolecall.node.logs import ProgressReader
from rolecall.node.reconcile import Key
from rolecall.spec.finding import Level, NodeFinding
from rolecall.spec.job import JobSpec, Progress
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.report import ProgressLine
from rolecall.spec.role import Role

KEY = StreamKey("toy-1", 1, 0, "progress")
PLAN = GangPlan(workers=(WorkerPlan(rank=0, role=Role.TRAINER, role_rank=0, node="trainer-0", threads=1),))
EVENT = b'{"kind":"event","at":0}\n'


class Master:
    """A book that reads the stream of a running job."""

    def __init__(self, database: Database, streams: Streams) -> None:
        self.database = database
        self.streams = streams
        self.book = ProgressBook(streams)

    async def get(self, *bodies: bytes, key: StreamKey = KEY) -> None:
        """Append to a stream and read it."""

        async def chunks() -> AsyncIterator[bytes]:
            for body in bodies:
                yield body

        await self.streams.append(key, self.streams.size(key), chunks())
        await self.book.ingest(self.database, key)

    async def messages(self) -> list[str]:
        """The messages of the workers' events."""
        async with self.database.read() as connection:
            return [one.message for one in await events.of_job(connection, "toy-1") if one.kind == "worker"]

    @contextmanager
    def counted(self) -> Generator[list[str]]:
        """The statements that the database is given within the block."""
        statements: list[str] = []
        engine = self.database._writer.sync_engine  # pyright: ignore[reportPrivateUsage]

        def note(*arguments: Any) -> None:
            statements.append(arguments[2])

        event.listen(engine, "before_cursor_execute", note)
        try:
            yield statements
        finally:
            event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
async def master(tmp_path: Path) -> AsyncIterator[Master]:
    database = Database(sqlite_url(tmp_path / "test.db"))
    await database.migrate()
    async with database.write() as connection:
        record = await jobs.add(connection, JobSpec(id="toy-1", workload="toy"), ManualClock().now())
        await attempts.begin(connection, record, PLAN, None, ManualClock().now())
    yield Master(database, Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0)))
    await database.close()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The thread of each parsed line."""
    threads: list[str] = []
    validate = ProgressLine.model_validate

    def note(given: object) -> ProgressLine:
        threads.append(threading.current_thread().name)
        return validate(given)

    monkeypatch.setattr(ProgressLine, "model_validate", note)
    return threads


async def test_invalid_lines_are_logged_once_and_then_counted(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        await master.get(b"\n" * 500, b'{"kind":"step","at":0,"metrics":{"%s":"\n"}}\n' % (b"x" * 5000), b"{}\n" * 100)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 500
    assert vars(record)["event"] == "progress_line_skipped"
    master.book.forget("toy-1")
    assert [record.getMessage() for record in caplog.records[1:]] == ["1805 more progress lines were skipped"]
    assert (vars(record)["job"], vars(record)["attempt"], vars(record)["rank"]) == ("toy-1", 1, 0)


@pytest.mark.slow
async def test_empty_lines_take_little_time(master: Master) -> None:
    step = b'{"kind":"step","at":0,"step":1,"metrics":{"loss":1}}\n'
    begin = time.process_time()
    await master.get(b"\n" * (4 << 20), step)
    assert is_within(time.process_time() - begin, 1.0)
    assert (master.book.of_job("toy-1", 1) or Progress()).step == 1
    begin = time.process_time()
    assert [point["step"] for point in StreamSeries(1000).feed(master.streams.lines(KEY)).points(1 << 20)] == [1]
    assert is_within(time.process_time() - begin, 0.5)


async def test_lines_are_parsed_outside_the_event_loop(master: Master, parsed: list[str]) -> None:
    await master.get(b'{"kind":"other","at":0}\n' * 5000)
    assert len(parsed) == 5000
    assert threading.current_thread().name not in parsed


async def test_the_event_loop_goes_on_during_a_flood(master: Master) -> None:
    async with turns_of_loop() as turns_s:
        await master.get(b"\n" * (250 << 10))
    assert max(turns_s) < 2


async def test_concurrent_reads_of_a_stream_share_the_work(master: Master, parsed: list[str]) -> None:
    with master.counted() as statements:
        await asyncio.gather(master.get(EVENT * 2000), *(master.get() for _ in range(5)))
    assert len(parsed) == 2000
    assert len(await master.messages()) == 1000
    assert len(statements) < 30


async def test_valid_lines_are_stored_in_few_statements_and_short_transactions(
    master: Master, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    add_once = events.add_once

    async def note(connection: Any, job: str, attempt: int, reported: Any) -> bool:
        batches.append(len(reported))
        return await add_once(connection, job, attempt, reported)

    monkeypatch.setattr(events, "add_once", note)
    with master.counted() as statements:
        await master.get(EVENT * 10_000)
    assert max(batches) <= 500
    assert len(batches) == 2, "the rest is dropped before the database is asked"
    assert len(statements) < 30
    messages = await master.messages()
    assert len(messages) == 1000
    assert messages[-1] == "workers reported 1000 events: later ones are in their logs only"
    with master.counted() as statements:
        await master.get(EVENT * 1000)
    assert statements == []


async def test_a_restarted_master_reads_a_flood_again_without_writing_it(master: Master) -> None:
    await master.get(EVENT * 5000)
    messages = await master.messages()
    master.book = ProgressBook(master.streams)
    with master.counted() as statements:
        await master.get()
    assert not [one for one in statements if one.startswith("INSERT")]
    assert len(statements) < 30
    assert await master.messages() == messages


async def test_many_results_and_first_steps_cost_one_statement_a_batch(master: Master) -> None:
    lines = b'{"kind":"result","at":%d,"metrics":{"n":%d}}\n{"kind":"first_step","at":%d}\n'
    with master.counted() as statements:
        await master.get(b"".join(lines % (second, second, second) for second in range(2000, 0, -1)))
    assert len(statements) < 100
    async with master.database.read() as connection:
        record = await jobs.get(connection, "toy-1")
        gang = await attempts.gang(connection, record)
    assert record.result == {"n": 1.0}
    assert gang.attempt.first_step_at is not None
    assert gang.attempt.first_step_at.timestamp() == 1


def test_a_series_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert StreamSeries(10).feed([b"\n", b"no JSON\n", b"{}\n"]).points(1 << 20) == []
    assert not caplog.records


async def test_the_series_of_a_user_take_one_thread(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = threading.Lock()

    def lines(streams: Streams, key: StreamKey, start: int) -> Iterator[bytes]:
        assert turns.acquire(blocking=False), "two threads read at the same time"
        time.sleep(0.05)  # A second thread would come meanwhile.
        turns.release()
        return iter(())

    monkeypatch.setattr(Streams, "lines", lines)
    keys = [StreamKey(job, 1, 0, "progress") for job in ("toy-1", "toy-2")]
    with closing(UserThreads("charts", each=1)) as threads:
        book = SeriesBook(master.streams, threads)
        assert await asyncio.gather(*(book.of_stream("mallory", key, 10, 1 << 20) for key in keys * 2)) == [[]] * 4


@pytest.mark.slow
async def test_a_job_s_progress_is_small_whatever_its_metrics_are_called(master: Master) -> None:
    names = (b"%04d" % number + b"x" * 10_000 for number in range(1500))
    await master.get(*(b'{"kind":"step","at":0,"step":1,"metrics":{"%s":1}}\n' % name for name in names))
    await master.get(*(b'{"kind":"step","at":0,"step":1,"metrics":{"%0200d":1}}\n' % number for number in range(1500)))
    newest = master.book.of_job("toy-1", 1) or Progress()
    assert len(newest.metrics) == 1000
    assert len(newest.model_dump_json()) < 250_000


@pytest.mark.parametrize("findings", [b"{}," * 20_000 + b"{}", b'{"nodes":[' + b"1," * 20_000 + b"1]}"])
def test_a_line_has_a_bounded_number_of_errors(findings: bytes) -> None:
    with pytest.raises(ValidationError) as caught:
        ProgressLine.model_validate_json(b'{"kind":"result","at":0,"findings":[%s]}' % findings)
    assert caught.value.error_count() < 10


async def test_the_result_of_a_large_examination_is_stored(master: Master) -> None:
    nodes = [f"trainer-{number}" for number in range(40)]
    found = [
        NodeFinding(check="reach", level=Level.OK, message="reachable in both directions, 0.1 and 0.1 ms", nodes=(a, b))
        for a in nodes
        for b in nodes
        if a < b
    ]
    await master.get(line("result", findings=tuple(found)).model_dump_json().encode() + b"\n")
    async with master.database.read() as connection:
        stored = (await jobs.get(connection, "toy-1")).result
    assert stored is not None
    assert len(stored["findings"]) == len(found)


async def test_a_line_without_an_end_is_skipped(master: Master, caplog: pytest.LogCaptureFixture) -> None:
    await master.get(b"x" * (3 << 20), b"\n", EVENT)
    assert len(await master.messages()) == 1
    assert len(caplog.records) == 1


def test_a_node_logs_the_first_invalid_line_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    folder = Folder(tmp_path / "job/1/0")
    folder.make()
    (folder.path / "progress.jsonl").write_bytes(b"{}\n" * 5000)
    reader = ProgressReader(Key("job", 1, 0), folder, "progress.jsonl")
    assert [reader.read() for _ in range(6)] == [[]] * 6
    assert len(caplog.records) == 1
    assert len(caplog.records[0].getMessage()) < 500
