"""From the lines of progress streams to what users see of them."""

import asyncio
import errno
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rolecall.master.clock import Clock
from rolecall.master.progress import ProgressBook
from rolecall.master.progress_lines import Latest, advance, is_newer, newest, parse, result
from rolecall.master.store import jobs
from rolecall.master.store.database import Database, sqlite_url
from rolecall.master.streams import StreamKey, Streams
from rolecall.spec.finding import Level, NodeFinding
from rolecall.spec.job import JobSpec, Progress
from rolecall.spec.report import ProgressLine, TimeSpent

from .harness import ManualClock
from .harness import line as progress_line

LINE = b'{"kind":"step","at":"2026-01-01T00:00:00Z","step":%d,"metrics":{"loss":0.5}}'
KEY = StreamKey("toy-1", 1, 0, "progress")


def test_a_job_s_progress_holds_a_bounded_number_of_metrics() -> None:
    progress = Progress()
    for line in range(30):
        names = {f"{line}-{name}": 1.0 for name in range(100)}
        progress = advance(progress, ProgressLine(kind="step", at=datetime.now(UTC), step=line, metrics=names))
    assert len(progress.metrics) == 1000


@pytest.mark.parametrize(
    ("attempt", "rank", "step", "newer"),
    [
        (2, 1, 6, True),
        (2, 1, 5, True),  # the same again, for example read twice
        (2, 0, 5, True),
        (2, 2, 5, False),
        (2, 0, 4, False),
        (1, 0, 9, False),
        (2, 0, None, True),
        (2, 2, None, False),
    ],
)
def test_the_latest_step_of_the_lowest_rank_counts(attempt: int, rank: int, step: int | None, newer: bool) -> None:
    before = Latest(attempt=2, rank=1, progress=Progress(step=5))
    key = StreamKey("toy-1", attempt, rank, "progress")
    assert is_newer(before, key, progress_line("step", step=step)) == newer


def test_what_a_line_does_not_tell_stays() -> None:
    before = advance(Progress(), progress_line("step", step=1, steps=9, metrics={"loss": 2.0, "accuracy": 0.5}))
    after = advance(before, progress_line("step", step=2, metrics={"loss": 1.0, "recall": math.inf}))
    assert (after.step, after.steps, after.loss) == (2, 9, 1.0)
    assert after.metrics == {"accuracy": 0.5}
    assert advance(after, progress_line("step", step=3, metrics={"loss": math.nan})).loss is None


def test_the_uses_of_time_are_always_those_of_the_worker_with_the_lowest_rank() -> None:
    """Each worker waits and calls for other times: with those of any, a job's figures would go back and forth."""
    reports = [(2, 1, 10.0), (1, 2, 1.0), (2, 3, 11.0), (1, 2, 2.0), (2, 9, 12.0)]
    latest, shown = None, list[float]()
    for rank, step, seconds in reports:
        line = progress_line("step", step=step, spent=TimeSpent(steps=20.0, communication=seconds))
        latest = newest(latest, StreamKey("toy-1", 1, rank, "progress"), [line])
        assert latest is not None
        assert latest.progress.spent is not None
        shown.append(latest.progress.spent.communication)
    assert shown == [10.0, 1.0, 1.0, 2.0, 2.0]
    assert latest is not None
    assert latest.progress.step == 9


def test_a_worker_that_is_ahead_hides_no_scores_of_another_one() -> None:
    """The chunks of two workers can arrive in an order in which the later step comes before the earlier scores."""
    of = {rank: StreamKey("toy-1", 1, rank, "progress") for rank in (1, 2)}
    scores = progress_line("step", step=100, epoch=1, metrics={"validation_auc": 0.8})
    before = progress_line("step", step=100, metrics={"loss": 0.5})
    ahead = progress_line("step", step=150, epoch=2, metrics={"loss": 0.4, "lr": 0.1})
    latest = newest(newest(None, of[1], [before]), of[2], [ahead])
    late = newest(latest, of[1], [scores])
    assert late is not None
    assert (late.progress.step, late.progress.epoch, late.progress.loss) == (150, 2, 0.4)
    assert late.progress.metrics == {"lr": 0.1, "validation_auc": 0.8}
    older = progress_line("step", step=99, metrics={"validation_auc": 0.1, "lr": 0.9, "loss": 9.0})
    assert newest(late, of[1], [older]) is late, "all of its values are known from later lines"
    same = progress_line("step", step=100, metrics={"validation_auc": 0.7})
    assert newest(late, of[2], [same]) is late, "of two workers, the lower rank counts"
    next_scores = progress_line("step", step=200, metrics={"validation_auc": 0.9})
    after = newest(late, of[2], [next_scores])
    assert after is not None
    assert after.progress.metrics == {"lr": 0.1, "validation_auc": 0.9}


def test_a_value_that_is_not_finite_hides_no_earlier_one() -> None:
    of = {rank: StreamKey("toy-1", 1, rank, "progress") for rank in (1, 2)}
    steps = [(1, 50, 0.5), (2, 150, math.nan), (1, 100, 0.8)]
    latest = None
    for rank, step, value in steps:
        latest = newest(latest, of[rank], [progress_line("step", step=step, metrics={"accuracy": value})])
    assert latest is not None
    assert latest.progress.metrics == {"accuracy": 0.8}


def test_what_is_no_progress_line_is_skipped_and_offsets_continue() -> None:
    first, other = progress_line("step", step=1), progress_line("event", message="saved")
    raw = [first.model_dump_json().encode() + b"\n", b"no JSON\n", other.model_dump_json().encode() + b"\n"]
    batch = parse(KEY, raw, 100)
    assert batch.steps == [first]
    assert batch.events == [(f"toy-1/1/0/{100 + len(raw[0]) + len(raw[1])}", other.at, "saved")]
    assert batch.end == 100 + sum(map(len, raw))
    assert batch.invalid == 1
    assert "Invalid JSON" in str(batch.error)


def test_a_result_has_findings_only_where_something_was_examined() -> None:
    assert result(progress_line("result", metrics={"loss": 1.0, "best": math.nan})) == {"loss": 1.0, "best": None}
    found = NodeFinding(check="disk", level=Level.OK, message="fine", nodes=("trainer-0",))
    assert result(progress_line("result", findings=(found,))) == {"findings": [found.model_dump(mode="json")]}


async def test_the_book_reads_each_line_once_and_stores_steps_at_its_flush(tmp_path: Path) -> None:
    async def chunks(*lines: ProgressLine) -> AsyncIterator[bytes]:
        for one in lines:
            yield one.model_dump_json().encode() + b"\n"

    database = Database(sqlite_url(tmp_path / "test.db"))
    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    await database.migrate()
    async with database.write() as connection:
        await jobs.add(connection, JobSpec(id="toy-1", workload="toy"), ManualClock().now())
    book = ProgressBook(streams)
    lines = [progress_line("step", step=step, metrics={"loss": 1.0 / step}) for step in (1, 2)]
    size = await streams.append(KEY, 0, chunks(*lines))
    await book.ingest(database, KEY)
    assert (book.of_job("toy-1", 1) or Progress()).step == 2
    assert book.of_job("toy-1", 2) is None, "of an attempt of which nothing was read"
    async with database.read() as connection:
        assert (await jobs.get(connection, "toy-1")).progress.step == 0
    await book.flush(database)
    await streams.append(KEY, size, chunks(progress_line("step", step=3)))
    await book.ingest(database, KEY)
    async with database.read() as connection:
        assert (await jobs.get(connection, "toy-1")).progress.step == 2
    await book.flush(database)
    async with database.read() as connection:
        assert (await jobs.get(connection, "toy-1")).progress.step == 3
    book.forget("toy-1")
    assert book.of_job("toy-1", 1) is None
    await book.ingest(database, KEY)
    assert (book.of_job("toy-1", 1) or Progress()).step == 3, "a restarted master reads the stream again"
    await database.close()


async def test_the_progress_of_a_restarted_master_does_not_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads all streams of the attempt before it has any progress, whichever worker reports first."""

    async def lines(first: int, last: int, **metrics: float) -> AsyncIterator[bytes]:
        for step in range(first, last + 1):
            yield progress_line("step", step=step, metrics=metrics).model_dump_json().encode() + b"\n"

    database = Database(sqlite_url(tmp_path / "test.db"))
    await database.migrate()
    async with database.write() as connection:
        await jobs.add(connection, JobSpec(id="toy-1", workload="toy"), ManualClock().now())
    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    await streams.append(KEY, 0, lines(1, 1100, validation_auc=0.9))
    other = StreamKey("toy-1", 1, 1, "progress")
    await streams.append(other, 0, lines(1, 1000, loss=2.0))
    reads = Counter[StreamKey]()
    read = Streams.lines

    def counted(self: Streams, key: StreamKey, start: int = 0) -> Iterator[bytes]:
        reads[key] += 1
        if key.rank == 2:
            raise OSError(errno.EIO, "I/O error")
        return read(self, key, start)

    monkeypatch.setattr(Streams, "lines", counted)
    await streams.append(StreamKey("toy-1", 1, 2, "progress"), 0, lines(1, 1))
    book = ProgressBook(streams)
    reading = [asyncio.create_task(book.ingest(database, key)) for key in (other, KEY) * 9]
    while not all(one.done() for one in reading):
        assert (book.of_job("toy-1", 1) or Progress(step=1100)).step == 1100
        await asyncio.sleep(0)
    await asyncio.gather(*reading)
    await book.flush(database)
    assert max(reads.values()) < 15, "once for each call, and for each batch"
    assert reads[StreamKey("toy-1", 1, 2, "progress")] == 1, "what can't be read keeps back no other progress"
    async with database.read() as connection:
        progress = (await jobs.get(connection, "toy-1")).progress
    assert (progress.step, progress.loss, progress.metrics) == (1100, 2.0, {"validation_auc": 0.9})
    await database.close()


async def test_names_of_values_are_saved_while_a_stream_is_read(tmp_path: Path) -> None:
    def step(number: int, *names: str) -> bytes:
        return progress_line("step", step=number, metrics=dict.fromkeys(names, 0.5)).model_dump_json().encode() + b"\n"

    async def append(data: bytes) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield data

        await streams.append(KEY, streams.size(KEY), chunks())
        await ProgressBook(streams).ingest(database, KEY)  # as after a restart of the master

    database = Database(sqlite_url(tmp_path / "test.db"))
    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    await database.migrate()
    assert streams.saved_names(KEY) == (0, set())
    await append(step(1, "loss") + step(2, "loss", "auc"))
    assert streams.saved_names(KEY) == (streams.size(KEY), {"loss", "auc"})
    before = streams.size(KEY)
    await append(step(3, "loss"))
    assert streams.saved_names(KEY) == (before, {"loss", "auc"}), "not for each line"
    await append(b"".join(step(number, "loss") for number in range(4, 300)))
    end, names = streams.saved_names(KEY)
    assert streams.size(KEY) - (8 << 10) < end <= streams.size(KEY)
    assert names == {"loss", "auc"}
    # Names have a limit, because a job's code can report any.
    await append(step(300, *(f"{number:0100}" for number in range(1000))))
    assert 10_000 < sum(map(len, streams.saved_names(KEY)[1])) <= 16 << 10
    await database.close()


async def test_names_that_cannot_be_saved_keep_no_progress_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def chunks(number: int) -> AsyncIterator[bytes]:
        yield progress_line("step", step=number, metrics={f"loss-{number}": 0.5}).model_dump_json().encode() + b"\n"

    database = Database(sqlite_url(tmp_path / "test.db"))
    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    await database.migrate()
    monkeypatch.setattr(Streams, "save_names", refuse)
    book = ProgressBook(streams)
    for number in (1, 2):
        await streams.append(KEY, streams.size(KEY), chunks(number))
        await book.ingest(database, KEY)
        assert (book.of_job("toy-1", 1) or Progress()).step == number
    assert [record.message for record in caplog.records].count(
        "the names of series can't be saved: [Errno 28] No space left on device"
    ) == 1
    monkeypatch.undo()
    await streams.append(KEY, streams.size(KEY), chunks(3))
    await book.ingest(database, KEY)
    assert streams.saved_names(KEY)[1] == {"loss-1", "loss-2", "loss-3"}
    await database.close()
