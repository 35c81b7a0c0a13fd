"""Step series: thinned for charts, and read again without the parts that are known."""

import asyncio
import math
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.cpu_time import is_within, slowness

from rolecall.master.clock import Clock
from rolecall.master.progress_lines import parse
from rolecall.master.series import SeriesBook, StreamSeries
from rolecall.master.series_names import SeriesNames
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import UserThreads
from rolecall.spec.role import Role

from .harness import Client, Node, make_node

LINE = b'{"kind":"step","at":"2026-01-01T00:00:00Z","step":%d,"metrics":{"loss":0.5}}'
SCORED = LINE.replace(b'"loss":0.5', b'"loss":0.5,"validation_auc":0.9')
MANY = 64 << 20
"""More bytes than a stream has."""


def series(lines: Iterable[bytes], max_points: int, max_bytes: int) -> list[dict[str, Any]]:
    return StreamSeries(max_points).feed(lines).points(max_bytes)


@pytest.mark.parametrize(("steps", "most"), [(0, 10), (1, 10), (10, 10), (11, 10), (41, 10), (1234, 100)])
def test_a_series_is_thinned_evenly_and_ends_with_the_last_step(steps: int, most: int) -> None:
    found = [point["step"] for point in series((LINE % step for step in range(1, steps + 1)), most, MANY)]
    assert len(found) <= most + 1
    assert found[-1:] == ([steps] if steps else [])
    assert len(found) >= min(steps, most // 2)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    assert not gaps or max(gaps[1:-1], default=1) == min(gaps[1:-1], default=1)


def test_values_that_few_lines_have_stay_in_a_thinned_series() -> None:
    scored = b'{"kind":"step","at":"2026-01-01T00:00:00Z","step":%d,"metrics":{"loss":0.5,"validation_auc":0.9}}'
    lines = ((scored if step % 500 == 250 else LINE) % step for step in range(10_000))
    found = series(lines, 30, MANY)
    assert [point["step"] for point in found if "validation_auc" in point] == list(range(250, 10_000, 500))
    assert len(found) <= 30 + 20 + 1
    assert [point["step"] for point in found] == sorted(point["step"] for point in found)


def test_a_series_of_large_steps_is_thinned_further() -> None:
    metrics = ",".join(f'"metric_{index}":0.5' for index in range(900)).encode()
    large = LINE.replace(b'"loss":0.5', b'"loss":0.5,' + metrics)
    lines = [(LINE if step % 10 else large) % step for step in range(1, 201)]
    found = series(lines, 100, 10 * len(large))
    assert 5 * 900 < sum(map(len, found)) < 10 * 900
    assert found[-1]["step"] == 200
    assert {len(one) for one in found} == {5, 905}


def test_a_series_of_the_longest_stream_takes_a_tenth_of_a_second() -> None:
    # The fields that every training loop reports.
    fields = b'"steps":1000000,"epoch":1,"samples_per_s":123.4,"seconds_left":3.0,"metrics"'
    full = LINE.replace(b'"metrics"', fields)
    lines = [full % step for step in range((16 << 20) // len(full))]
    times_s = [math.inf]
    limit_s = 0.1 * slowness()
    while min(times_s) > limit_s and len(times_s) <= 10:  # Other tests share the cores' caches.
        begin = time.process_time()
        assert series(iter(lines), 1000, MANY)[-1]["step"] == len(lines) - 1
        times_s.append(time.process_time() - begin)
    assert min(times_s) <= limit_s, times_s


def test_a_long_series_takes_little_memory() -> None:
    def lines() -> Iterator[bytes]:
        yield from (LINE % step for step in range(20_000))

    series((LINE % 1,), 10, MANY)
    tracemalloc.start()
    series(lines(), 10, MANY)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.fixture
def threads() -> Iterator[UserThreads]:
    with closing(UserThreads("charts", each=1)) as threads:
        yield threads


async def append(streams: Streams, key: StreamKey, data: bytes) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield data

    await streams.append(key, streams.size(key), chunks())


async def test_each_value_is_found_in_the_stream_with_the_lowest_rank(tmp_path: Path, threads: UserThreads) -> None:
    async def found() -> list[tuple[int, int]]:
        return [(key.attempt, key.rank) for key in await book.lowest_ranks("alice", keys)]

    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    book = SeriesBook(streams, threads)
    keys = [StreamKey("toy-1", attempt, rank, "progress") for attempt in (2, 1) for rank in range(4)]
    for key in keys:
        await append(streams, key, (SCORED if key.rank == 2 else LINE) % 1 + b"\n" if key.rank else b"")
    assert await found() == [(1, 1), (1, 2), (2, 1), (2, 2)]
    # What is added later counts, as soon as the line is complete.
    rest = SCORED % 5 + b"\n"
    await append(streams, keys[0], rest[:-5])
    assert len(await found()) == 4
    await append(streams, keys[0], rest[-5:])
    assert await found() == [(1, 1), (1, 2), (2, 0)]


async def test_a_chart_after_a_restart_reads_little_of_the_streams_that_it_does_not_show(
    tmp_path: Path, threads: UserThreads
) -> None:
    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    keys = [StreamKey("toy-1", 1, rank, "progress") for rank in range(20)]
    for key in keys:
        lines = b"".join((SCORED if key.rank == 7 and step == 5 else LINE) % step + b"\n" for step in range(2000))
        await append(streams, key, lines)
        batch = parse(key, streams.lines(key), 0)
        SeriesNames(streams, key).feed_parsed(batch.steps, len(lines)).save()
    before = bytes_read()
    assert [key.rank for key in await SeriesBook(streams, threads).lowest_ranks("alice", keys)] == [0, 7]
    assert bytes_read() - before < 20 << 10
    await append(streams, keys[3], LINE.replace(b"loss", b"accuracy") % 2000 + b"\n")
    assert [key.rank for key in await SeriesBook(streams, threads).lowest_ranks("alice", keys)] == [0, 3, 7]


async def test_a_stream_that_takes_long_delays_no_other_users_charts(tmp_path: Path, threads: UserThreads) -> None:
    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    book = SeriesBook(streams, threads)
    mine, others = [StreamKey(job, 1, 0, "progress") for job in ("mine-1", "others-1")]
    await append(streams, mine, LINE % 1 + b"\n")
    begun, goes_on, lines = threading.Event(), threading.Event(), streams.lines

    def slow(key: StreamKey, start: int = 0) -> Iterator[bytes]:
        if key == others:
            begun.set()
            goes_on.wait()
        return lines(key, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "lines", slow)
        calls = [asyncio.create_task(book.of_stream("mallory", others, points, MANY)) for points in range(10, 20)]
        await asyncio.to_thread(begun.wait)
        async with asyncio.timeout(10):
            assert await book.lowest_ranks("alice", [mine]) == [mine]
            assert [point["step"] for point in await book.of_stream("alice", mine, 10, MANY)] == [1]
        goes_on.set()
        await asyncio.gather(*calls)


async def test_a_stream_that_is_read_in_parts_has_the_series_of_the_whole(tmp_path: Path, threads: UserThreads) -> None:
    streams = Streams(tmp_path, 1 << 20, Clock(monotonic=lambda: 0.0))
    book = SeriesBook(streams, threads)
    key = StreamKey("toy-1", 1, 0, "progress")
    lines = [(SCORED if step % 50 == 0 else LINE) % step + b"\n" for step in range(1000)]
    whole = b"".join(lines)
    for start in range(0, len(whole), 7001):
        await append(streams, key, whole[start : start + 7001])
        await book.of_stream("alice", key, 30, MANY)
    assert await book.of_stream("alice", key, 30, MANY) == series(lines, 30, MANY)


async def job_with_full_streams(client: Client, workers: int, stream_bytes: int) -> str:
    """A job whose workers reported for so long that each has a stream of this size, which the master has read."""
    node = Node(client, make_node("trainer-0", Role.TRAINER, workers, cores=workers))
    await node.register()
    await node.beat()
    job = (await client.submit(roles={"parameter-server": 0, "trainer": workers}))["id"]
    await node.workers(workers)
    stream = b"".join(LINE % step + b"\n" for step in range(stream_bytes // len(LINE)))
    streams = client.master.streams
    for rank in range(workers):
        key = StreamKey(job, 1, rank, "progress")
        await append(streams, key, stream)
        SeriesNames(streams, key).feed(streams.lines(key)).save()
    return job


async def page_series(client: Client, job: str) -> list[dict[str, Any]]:
    """The call that the page repeats."""
    answer = await client.user("GET", f"/jobs/{job}/metrics", params={"points": 1000, "lowest_rank": True})
    return answer.json()["series"]


def bytes_read() -> int:
    """The number of bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text(encoding="utf-8").split()[1])


async def test_a_chart_reads_only_what_is_new(client: Client) -> None:
    job = await job_with_full_streams(client, 20, 200 << 10)
    assert [one["rank"] for one in await page_series(client, job)] == [0]
    await append(client.master.streams, StreamKey(job, 1, 0, "progress"), LINE % 10_000 + b"\n")
    before = bytes_read()
    (one,) = await page_series(client, job)
    assert one["points"][-1]["step"] == 10_000
    assert bytes_read() - before < 100 << 10


async def test_series_that_are_too_large_for_an_answer_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolecall.master.api.files._MOST_BYTES", 6 * len(LINE))
    job = await job_with_full_streams(client, 3, 200 << 10)
    answer = await client.user("GET", f"/jobs/{job}/metrics")
    assert answer.status_code == 200
    assert all(len(one["points"]) in {1, 2} for one in answer.json()["series"])
    assert len(answer.json()["series"]) == 3
    monkeypatch.setattr("rolecall.master.api.files._MOST_BYTES", len(LINE))
    answer = await client.user("GET", f"/jobs/{job}/metrics")
    assert answer.status_code == 422
    assert "lowest_rank=true" in answer.json()["errors"][0]["legal"]
    remedy = f"`rolecall metrics {job} --attempt N`"
    assert remedy in answer.json()["detail"]
    answer = await client.user("GET", f"/jobs/{job}/metrics?attempt=1")
    assert answer.status_code == 422
    assert remedy not in answer.json()["detail"]


@pytest.mark.slow
async def test_the_series_of_200_workers_take_less_than_100_ms(client: Client) -> None:
    job = await job_with_full_streams(client, 200, 200 << 10)
    times_s: list[float] = []
    for _ in range(5):
        begin = time.process_time()
        assert len(await page_series(client, job)) == 1
        times_s.append(time.process_time() - begin)
    first, *later = times_s
    assert is_within(min(later), 0.1), times_s
    # It is the only one that finds nothing in memory, so that no repetition makes up for a busy machine.
    assert first < 0.3, times_s
