"""Logs over HTTP: whole, followed, and followed again after a break."""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from httpx_sse import ServerSentEvent, aconnect_sse
from sqlalchemy import event
from tests.cpu_time import is_within, slowness
from tests.master.harness import (
    TOKEN,
    Client,
    Node,
    bearer,
    make_node,
    on_master,
    running,
    turns_of_loop,
)

from rolecall.master.api import keep_alive, log_follower, logs
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState


async def followed(
    client: Client, job: str, *, until: str, last_id: str = "", query: str = ""
) -> list[ServerSentEvent]:
    """The events up to the one with this text."""
    headers = bearer(TOKEN) | ({"Last-Event-ID": last_id} if last_id else {})
    found: list[ServerSentEvent] = []
    async with aconnect_sse(client.http, "GET", f"/jobs/{job}/logs?follow=true{query}", headers=headers) as source:
        async for event in source.aiter_sse():
            found.append(event)
            if event.data == until:
                return found
    raise AssertionError(f"the stream ended: {found}")


async def test_workers_that_a_job_does_not_have_are_an_error_that_names_its_own(client: Client) -> None:
    for number, role in enumerate((Role.PARAMETER_SERVER, Role.TRAINER)):
        node = Node(client, make_node(f"{role}-{number}", role))
        await node.enter()
        await node.beat()
    job = (await client.submit())["id"]
    await client.until(job, "placed")
    queued = (await client.submit(roles={"parameter-server": 0, "trainer": 64}))["id"]
    own = f"job {job} has no %s; attempt 1 has: parameter-server (rank 0), trainer (ranks 1 to 2)"
    for query, detail in (
        ("rank=99", own % "worker with rank 99"),
        ("role=observer", own % "observer"),
        ("role=trainers", own % "trainers"),
        ("role=trainer&rank=0&follow=true", own % "trainer with rank 0"),
    ):
        refused = await client.user("GET", f"/jobs/{job}/logs?{query}")
        assert (refused.status_code, refused.json()["detail"]) == (404, detail)
    refused = await client.user("GET", f"/jobs/{queued}/logs?role=observer&follow=true")
    assert (refused.status_code, refused.json()["detail"]) == (404, f"job {queued} has no observer; it has: trainer")
    for query in ("role=trainer", "rank=99"):
        assert (await client.user("GET", f"/jobs/{queued}/logs?{query}")).text == "", "its ranks are not known yet"


async def test_a_carriage_return_ends_a_line_of_a_single_worker_too(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_LARGE_BLOCK", 8)
    node, job, worker = await running(client)
    await node.ship(worker, "log", b" 5%|#\r 10%|\r\nabcdef\r\nghijklm\r\r\nx\r")
    shown = (await client.user("GET", f"/jobs/{job}/logs?rank=0")).text
    assert "\r" not in shown
    assert shown.split("\n") == [
        *(f"[trainer-0] {text}" for text in (" 5%|#", " 10%|", "abcdef", "ghijklm", "", "x")),
        "",
    ]
    for tail in range(8):
        last = (await client.user("GET", f"/jobs/{job}/logs?rank=0&tail={tail}")).text
        assert last.splitlines() == shown.splitlines()[max(0, 6 - tail) :]


@pytest.mark.slow
async def test_a_progress_bar_and_a_long_line_are_shown_before_they_end(client: Client) -> None:
    node, job, worker = await running(client)
    await node.ship(worker, "log", b"  5%|#\r 10%|##")
    assert [event.data for event in await followed(client, job, until="[trainer-0]  10%|##")] == [
        "[trainer-0]   5%|#",
        "[trainer-0]  10%|##",
    ]


async def test_a_position_has_the_workers_of_the_attempt_only(client: Client) -> None:
    # Each event repeats it: with thousands of ranks in a header, a block of empty lines became gigabytes of events.
    node, job, worker = await running(client)
    await node.ship(worker, "log", b"a\n" + b"\n" * 20_000 + b"b\n")
    strange = ",".join(f"{rank}=0" for rank in range(1, 5000))
    before = psutil.Process().memory_info().rss
    first, *_ = await followed(client, job, until="[trainer-0] a", last_id=f"1;0=0,{strange}")
    assert first.id == "1;0=2"
    assert psutil.Process().memory_info().rss - before < 100 << 20


@pytest.mark.slow
async def test_following_a_log_of_empty_lines_does_not_hold_up_the_master(client: Client) -> None:
    node, job, worker = await running(client)
    await node.ship(worker, "log", b"\n" * (1 << 20) + b"last\n")
    async with (
        turns_of_loop() as turns_s,
        client.http.stream("GET", f"/jobs/{job}/logs?follow=true", headers=bearer(TOKEN)) as answer,
    ):
        async for raw in answer.aiter_raw():
            if raw.endswith(b"[trainer-0] last\n\n"):
                break
    assert max(turns_s) < 1.5, "3 s if the event loop splits the lines"


async def test_a_worker_can_neither_end_nor_forge_what_others_are_shown(client: Client) -> None:
    """None of these ends a line of server-sent events, but each would for `str.splitlines`."""

    node, job, worker = await running(client)
    await node.ship(worker, "log", "a\x0cevent: end\u2028event: end\x1e\rdata: x\nlast\n".encode())
    events = await followed(client, job, until="[trainer-0] last")
    assert [(event.event, event.data) for event in events] == [
        ("log", "[trainer-0] a\x0cevent: end\u2028event: end\x1e"),
        ("log", "[trainer-0] data: x"),
        ("log", "[trainer-0] last"),
    ]


@pytest.mark.slow
async def test_a_stream_that_broke_off_goes_on_behind_its_last_event_with_another_master(tmp_path: Path) -> None:
    async with on_master(tmp_path / "data") as client:
        node, job, worker = await running(client)
        await node.ship(worker, "log", b"".join(b"line %d\n" % number for number in range(100)))
        events = await followed(client, job, until="[trainer-0] line 41")
        (tmp_path / "seen").write_text(f"{job}\n{events[-1].id}")
    async with on_master(tmp_path / "data") as client:
        job, last_id = (tmp_path / "seen").read_text().split("\n")
        events = await followed(client, job, until="[trainer-0] line 99", last_id=last_id)
        assert [event.data for event in events] == [f"[trainer-0] line {number}" for number in range(42, 100)]
        for position in ("999999999;", "2;0=5"):
            headers = {"Last-Event-ID": position}
            missing = await client.user("GET", f"/jobs/{job}/logs?follow=true", headers=headers)
            assert missing.status_code == 404
        assert (await client.user("GET", f"/jobs/{job}/logs?follow=true&attempt=7")).status_code == 404
        refused = await client.user("GET", f"/jobs/{job}/logs?follow=true", headers={"Last-Event-ID": "1;0=x"})
        assert refused.status_code == 400
        assert "Last-Event-ID" in refused.json()["detail"]


async def test_the_end_waits_for_the_rest_of_a_log(client: Client) -> None:
    """A worker's end is reported before a long log has arrived."""

    node, job, worker = await running(client)
    await node.ship(worker, "log", b"begin\n")
    await node.say(worker, WorkerState.SUCCEEDED, exit_code=0, log_bytes=len(b"begin\nrest\n"))
    await client.until(job, "succeeded")
    headers, seen = bearer(TOKEN), list[str]()
    async with aconnect_sse(client.http, "GET", f"/jobs/{job}/logs?follow=true", headers=headers) as source:
        async for event in source.aiter_sse():
            seen.append(event.data)
            if event.data == "[trainer-0] begin":
                await node.ship(worker, "log", b"rest\n", offset=6)
    assert seen == ["[trainer-0] begin", "[trainer-0] rest", "succeeded"]


@pytest.mark.slow
async def test_a_log_is_bounded_and_the_cut_is_marked(tmp_path: Path) -> None:
    async with on_master(tmp_path, log_bytes=1 << 20) as client:
        node, job, worker = await running(client)
        line, size = b"x" * 999 + b"\n", 0
        for _ in range(40):
            size = await node.ship(worker, "log", line * 100, offset=size)
        assert size == 4_000_000
        text = (await client.user("GET", f"/jobs/{job}/logs")).text
        assert 1 << 19 < len(text) < 3 << 19
        assert "bytes of this log were cut here: ROLECALL_LOG_BYTES" in text
        assert sum(path.stat().st_size for path in (tmp_path / "streams").rglob("log*.txt")) < 3 << 19


@pytest.mark.slow
async def test_followers_of_silent_jobs_cost_nothing_while_another_job_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keep_alive, "EVERY_S", 600.0)  # who waits is woken by news, or not at all

    async with on_master(tmp_path) as client:
        node, loud, worker = await running(client)
        silent = [(await client.submit(roles={"trainer": 100}))["id"] for _ in range(5)]
        async with httpx.AsyncClient(base_url=client.http.base_url, timeout=60, limits=httpx.Limits()) as http:
            followers = [asyncio.create_task(_first_of(http, job)) for job in silent * 20]
            async with asyncio.timeout(20):
                while len(client.master.news) < len(silent) or _waiting(client) < 100:
                    await asyncio.sleep(0.05)
            streamed = asyncio.create_task(followed(client, loud, until="[trainer-0] line 49"))
            looks, size = looks_at(client, silent), 0
            for number in range(50):
                size = await node.ship(worker, "log", b"line %d\n" % number, offset=size)
            async with asyncio.timeout(20):
                assert len(await streamed) == 50
            assert looks == []
            await client.user("POST", f"/jobs/{silent[0]}/cancel")
            async with asyncio.timeout(20):
                assert await asyncio.gather(*followers[::5]) == ["end"] * 20
            for follower in followers:
                follower.cancel()
            await asyncio.wait(followers)


@pytest.mark.parametrize("noun", ["logs", "events"])
async def test_most_comments_to_a_follower_of_a_silent_job_ask_the_database_for_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, noun: str
) -> None:
    monkeypatch.setattr(keep_alive, "EVERY_S", 0.02)
    job = (await client.submit(roles={"trainer": 100}))["id"]
    await client.until(job, "queued", also=lambda one: one["waiting_for"])  # Its followers learn of it.
    async with client.http.stream("GET", f"/jobs/{job}/{noun}?follow=true", headers=bearer(TOKEN)) as answer:
        lines = (line async for line in answer.aiter_lines() if line.startswith(":"))
        await anext(lines)
        looks, comments = looks_at(client, [job]), 4 * keep_alive.LOOK_AFTER
        for _ in range(comments):
            await anext(lines)
        per_look = {"logs": 1, "events": 2}[noun]
        assert 3 <= len(looks) / per_look <= 5


def looks_at(client: Client, jobs: list[str]) -> list[str]:
    """Grows by the job's id with every question about one of these jobs that the database is asked from now on."""
    looks: list[str] = []

    def note(_connection: Any, _cursor: Any, _statement: str, parameters: Any, *_: Any) -> None:
        looks.extend(set(jobs).intersection(map(str, parameters)))

    engine = client.master.database._reader.sync_engine  # pyright: ignore[reportPrivateUsage]
    event.listen(engine, "before_cursor_execute", note)
    return looks


async def _first_of(http: httpx.AsyncClient, job: str) -> str:
    """The first event that a follower of a job gets."""
    async with aconnect_sse(http, "GET", f"/jobs/{job}/logs?follow=true", headers=bearer(TOKEN)) as source:
        return (await anext(source.aiter_sse())).event


def _waiting(client: Client) -> int:
    """The number of followers that wait for news."""
    events = client.master.news._events.values()  # pyright: ignore[reportPrivateUsage]
    return sum(len(event._waiters) for event in events)  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_a_large_log_costs_little(tmp_path: Path) -> None:
    """100 MB of short lines. Everything, the reader too, runs in this process."""

    async with on_master(tmp_path, log_bytes=1 << 30) as client:
        node, job, worker = await running(client)
        chunk, size = b"".join(b"step %07d loss 0.123456\n" % number for number in range(40_000)), 0
        while size < 100_000_000:
            size = await node.ship(worker, "log", chunk, offset=size)
        process = psutil.Process()
        cpu, began, received = process.cpu_times(), time.monotonic(), 0
        async with client.http.stream("GET", f"/jobs/{job}/logs", headers=bearer(TOKEN)) as answer:
            async for raw in answer.aiter_raw():
                received += len(raw)
        after, wall_s = process.cpu_times(), time.monotonic() - began
        cpu_s = after.user + after.system - cpu.user - cpu.system
        print(f"{received / 1e6:.0f} MB in {wall_s:.2f} s with {cpu_s:.2f} s of CPU")
        assert received > size
        assert is_within(cpu_s, 1.0)
        assert received / wall_s > 50e6 / slowness()
        # What the page asks for.
        began = time.process_time()
        tail = await client.user("GET", f"/jobs/{job}/logs", params={"tail": 1000})
        assert len(tail.text.splitlines()) == 1000
        assert is_within(time.process_time() - began, 0.1)


RECORDS = b"2026-01-01 10:00:00.000+00:00 INFO old Needle\n2999-01-01 10:00:00.000+00:00 INFO new\nprinted needle\n"


async def test_only_lines_with_a_text(client: Client) -> None:
    node, job, worker = await running(client)
    await node.ship(worker, "log", b"".join(b"line %d\n" % number for number in range(50_000)) + b"no end of line 7")

    async def lines(**query: Any) -> list[str]:
        return (await client.user("GET", f"/jobs/{job}/logs", params=query)).text.splitlines()

    assert await lines(text="LINE 4999") == [f"[trainer-0] line {n}" for n in (4999, *range(49990, 50_000))]
    assert await lines(text=["line 777", "end of"], tail=3) == [
        *(f"[trainer-0] line {n}" for n in (7778, 7779)),
        "[trainer-0] no end of line 7",
    ]
    assert await lines(text="trainer-0] line 12345") == ["[trainer-0] line 12345"]
    assert await lines(text="nowhere") == []


@pytest.mark.slow
@pytest.mark.parametrize("text", ["(a+)+$", "%", "\\", ".*", "[", "\x00", "x" * 200])
async def test_a_text_is_no_pattern(client: Client, text: str) -> None:
    _, job, _ = await running(client)
    found = await client.user("GET", f"/jobs/{job}/logs", params={"text": text})
    assert (found.status_code, found.text) == (200, "")


async def test_filters_are_bounded(client: Client) -> None:
    _, job, _ = await running(client)
    # No line contains a line end, but the search for one would examine each line.
    texts = ({"text": ""}, {"text": "x" * 201}, {"text": ["x"] * 11}, {"text": "a\nb"}, {"text": "\r"})
    for query in (*texts, {"since": "2026-01-01T00:00:00"}):
        refused = await client.user("GET", f"/jobs/{job}/logs", params=query)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"].partition(".")[0] == next(iter(query))


async def test_a_follower_gets_new_lines_with_a_text(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "_PARTIAL_S", 0.05)
    node, job, worker = await running(client)
    size = await node.ship(worker, "log", RECORDS)
    events = await followed(client, job, until="[trainer-0] printed needle", query="&text=NEEDLE&tail=1")
    assert [event.data for event in events] == ["[trainer-0] printed needle"]
    events = await followed(client, job, until="[trainer-0] printed needle", query="&text=needle")
    assert [event.data[:50] for event in events] == [
        "[trainer-0] 2026-01-01 10:00:00.000+00:00 INFO old Needle"[:50],
        "[trainer-0] printed needle",
    ]
    # A stream that breaks off continues after the last line that it has sent.
    more = asyncio.create_task(
        followed(client, job, until="[trainer-0] needle, whole", last_id=events[0].id, query="&text=needle")
    )
    size = await node.ship(worker, "log", b"nothing\nneed", offset=size)
    async with asyncio.timeout(20):
        # A follower without a text gets the line before its end.
        await followed(client, job, until="[trainer-0] need")
    await node.ship(worker, "log", b"le, whole\n", offset=size)
    async with asyncio.timeout(20):
        assert [event.data for event in await more] == ["[trainer-0] printed needle", "[trainer-0] needle, whole"]


async def test_a_follower_begins_at_a_time(client: Client) -> None:
    node, job, worker = await running(client)
    size = await node.ship(worker, "log", RECORDS)
    since = "&since=2026-06-01T00:00:00Z"
    following = asyncio.create_task(followed(client, job, until="[trainer-0] later", query=since))
    both = await followed(client, job, until="[trainer-0] printed needle", query=f"{since}&text=e&tail=1")
    assert [event.data for event in both] == ["[trainer-0] printed needle"]
    await node.ship(worker, "log", b"later\n", offset=size)
    async with asyncio.timeout(20):
        assert [event.data for event in await following] == [
            *(f"[trainer-0] {text}" for text in RECORDS.decode().splitlines()[1:]),
            "[trainer-0] later",
        ]


async def test_a_long_search_keeps_its_stream_alive(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "EVERY_S", 0.0)
    node, job, worker = await running(client)
    await node.ship(worker, "log", b"line\n" * 100_000 + b"needle\n")
    query, seen = "follow=true&text=needle&tail=5", b""
    async with client.http.stream("GET", f"/jobs/{job}/logs?{query}", headers=bearer(TOKEN)) as answer:
        async for raw in answer.aiter_raw():
            seen += raw
            if b"needle" in seen:
                break
    assert seen.startswith(b": nothing new\n\n")


@pytest.mark.slow
async def test_a_large_log_is_searched_quickly(tmp_path: Path) -> None:
    async with on_master(tmp_path, log_bytes=1 << 30) as client:
        node, job, worker = await running(client)
        chunk, size = b"".join(b"step %07d loss 0.123456\n" % number for number in range(40_000)), 0
        size = await node.ship(worker, "log", b"needle\n", offset=size)
        while size < 100_000_000:
            size = await node.ship(worker, "log", chunk, offset=size)
        began = time.process_time()
        found = await client.user("GET", f"/jobs/{job}/logs", params={"text": "Needle"})
        assert found.text == "[trainer-0] needle\n"
        print(f"{size / 1e6:.0f} MB searched in {time.process_time() - began:.2f} s of CPU")
        assert is_within(time.process_time() - began, 1.5)
        began = time.process_time()
        await followed(client, job, until="[trainer-0] needle", query="&text=needle&tail=1000")
        print(f"with follow and tail in {time.process_time() - began:.2f} s of CPU")
        assert is_within(time.process_time() - began, 3)
        began = time.process_time()
        found = await client.user("GET", f"/jobs/{job}/logs", params={"text": "step", "tail": 1000})
        assert len(found.text.splitlines()) == 1000
        assert is_within(time.process_time() - began, 0.5), "only the end is read"


async def gang_that_logs(client: Client) -> str:
    """A job of two trainers that run and have written records and a traceback."""
    nodes = [Node(client, make_node(f"trainer-{number}", Role.TRAINER)) for number in range(2)]
    for node in nodes:
        await node.enter()
        await node.beat()
    job = (await client.submit(roles={"trainer": 2, "parameter-server": 0}))["id"]
    await client.until(job, "placed")
    for second, node in enumerate(nodes):
        (worker,) = await node.workers()
        await node.say(worker, WorkerState.RUNNING)
        records = [f"2026-01-01T10:00:0{n}.000Z INFO {n}\n    more of {n}\n" for n in range(second, 10, 2)]
        await node.ship(worker, "log", "".join(records).encode())
    return job


MERGED = [
    f"[trainer-{n % 2}] {text}"
    for n in range(10)
    for text in (f"2026-01-01T10:00:0{n}.000Z INFO {n}", f"    more of {n}")
]


async def test_the_logs_of_several_workers_are_merged_by_time(client: Client) -> None:
    job = await gang_that_logs(client)

    async def lines(**query: Any) -> list[str]:
        return (await client.user("GET", f"/jobs/{job}/logs", params=query)).text.splitlines()

    assert await lines() == MERGED
    assert await lines(rank=1) == [line for line in MERGED if line.startswith("[trainer-1]")]
    assert await lines(text="INFO") == MERGED[::2]
    for tail in (0, 1, 3, 100):
        assert await lines(tail=tail) == MERGED[len(MERGED) - min(tail, len(MERGED)) :]
    assert await lines(tail=2, text="INFO") == MERGED[::2][-2:]
    assert await lines(since="2026-01-01T10:00:05Z") == MERGED[10:]


async def test_a_follower_gets_older_lines_of_several_workers_by_time(client: Client) -> None:
    job = await gang_that_logs(client)
    events = await followed(client, job, until=MERGED[-1])
    assert [event.data for event in events] == MERGED
    again = await followed(client, job, until=MERGED[-1], last_id=events[6].id)
    assert [event.data for event in again] == MERGED[7:]
    last = await followed(client, job, until=MERGED[-1], query="&tail=5")
    assert [event.data for event in last] == MERGED[-5:]


async def test_the_last_lines_of_a_worker(client: Client) -> None:
    node, job, worker = await running(client)
    await node.ship(worker, "log", b"".join(b"line %d\n" % number for number in range(50_000)))
    for tail in (0, 1, 3, 10_000):
        found = (await client.user("GET", f"/jobs/{job}/logs", params={"tail": tail})).text.splitlines()
        assert found == [f"[trainer-0] line {number}" for number in range(50_000 - tail, 50_000)]
    events = await followed(client, job, until="[trainer-0] line 49999", query="&tail=2")
    assert [event.data for event in events] == ["[trainer-0] line 49998", "[trainer-0] line 49999"]
