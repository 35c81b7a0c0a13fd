"""Logs over HTTP: whole, followed, and followed again after a break."""

import time
from pathlib import Path

import psutil
import pytest
from httpx_sse import ServerSentEvent, aconnect_sse
from tests.master.harness import ONE_TRAINER, TOKEN, Client, Node, bearer, on_master, one_trainer

from rolecall.spec.state import WorkerState
from rolecall.spec.wire import DesiredWorker


async def running(client: Client) -> tuple[Node, str, DesiredWorker]:
    """A job of one trainer that runs."""
    node = await one_trainer(client)
    job = (await client.submit(roles=ONE_TRAINER))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    return node, job, worker


async def followed(client: Client, job: str, *, until: str, last_id: str = "") -> list[ServerSentEvent]:
    """The events up to the one with this text."""
    headers = bearer(TOKEN) | ({"Last-Event-ID": last_id} if last_id else {})
    found: list[ServerSentEvent] = []
    async with aconnect_sse(client.http, "GET", f"/jobs/{job}/logs?follow=true", headers=headers) as source:
        async for event in source.aiter_sse():
            found.append(event)
            if event.data == until:
                return found
    raise AssertionError(f"the stream ended: {found}")


def test_a_progress_bar_and_a_long_line_are_shown_before_they_end(tmp_path: Path) -> None:
    async def flow(client: Client) -> None:
        node, job, worker = await running(client)
        await node.ship(worker, "log", b"  5%|#\r 10%|##")
        assert [event.data for event in await followed(client, job, until="[trainer-0]  10%|##")] == [
            "[trainer-0]   5%|#",
            "[trainer-0]  10%|##",
        ]

    on_master(tmp_path, flow)


def test_a_worker_can_neither_end_nor_forge_what_others_are_shown(tmp_path: Path) -> None:
    """None of these ends a line of server-sent events, but each would for `str.splitlines`."""

    async def flow(client: Client) -> None:
        node, job, worker = await running(client)
        await node.ship(worker, "log", "a\x0cevent: end\u2028event: end\x1e\rdata: x\nlast\n".encode())
        events = await followed(client, job, until="[trainer-0] last")
        assert [(event.event, event.data) for event in events] == [
            ("log", "[trainer-0] a\x0cevent: end\u2028event: end\x1e"),
            ("log", "[trainer-0] data: x"),
            ("log", "[trainer-0] last"),
        ]

    on_master(tmp_path, flow)


def test_a_stream_that_broke_off_goes_on_behind_its_last_event_with_another_master(tmp_path: Path) -> None:
    async def before(client: Client) -> None:
        node, job, worker = await running(client)
        await node.ship(worker, "log", b"".join(b"line %d\n" % number for number in range(100)))
        events = await followed(client, job, until="[trainer-0] line 41")
        (tmp_path / "seen").write_text(f"{job}\n{events[-1].id}")

    async def after(client: Client) -> None:
        job, last_id = (tmp_path / "seen").read_text().split("\n")
        events = await followed(client, job, until="[trainer-0] line 99", last_id=last_id)
        assert [event.data for event in events] == [f"[trainer-0] line {number}" for number in range(42, 100)]
        refused = await client.user("GET", f"/jobs/{job}/logs?follow=true", headers={"Last-Event-ID": "1;0=x"})
        assert refused.status_code == 400
        assert "Last-Event-ID" in refused.json()["detail"]

    on_master(tmp_path / "data", before)
    on_master(tmp_path / "data", after)


def test_the_end_waits_for_the_rest_of_a_log(tmp_path: Path) -> None:
    """A worker's end is told before a long log has arrived."""

    async def flow(client: Client) -> None:
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

    on_master(tmp_path, flow)


def test_a_log_is_bounded_and_the_cut_is_marked(tmp_path: Path) -> None:
    async def flow(client: Client) -> None:
        node, job, worker = await running(client)
        line, size = b"x" * 999 + b"\n", 0
        for _ in range(40):
            size = await node.ship(worker, "log", line * 100, offset=size)
        assert size == 4_000_000
        text = (await client.user("GET", f"/jobs/{job}/logs")).text
        assert 1 << 19 < len(text) < 3 << 19
        assert "bytes of this log were cut here: ROLECALL_LOG_BYTES" in text
        assert sum(path.stat().st_size for path in (tmp_path / "streams").rglob("log*.txt")) < 3 << 19

    on_master(tmp_path, flow, log_bytes=1 << 20)


@pytest.mark.slow
def test_a_large_log_costs_little(tmp_path: Path) -> None:
    """100 MB of short lines. Everything, the reader too, runs in this process."""

    async def flow(client: Client) -> None:
        node, job, worker = await running(client)
        piece, size = b"".join(b"step %07d loss 0.123456\n" % number for number in range(40_000)), 0
        while size < 100_000_000:
            size = await node.ship(worker, "log", piece, offset=size)
        process = psutil.Process()
        cpu, began, received = process.cpu_times(), time.monotonic(), 0
        async with client.http.stream("GET", f"/jobs/{job}/logs", headers=bearer(TOKEN)) as answer:
            async for raw in answer.aiter_raw():
                received += len(raw)
        after, wall_s = process.cpu_times(), time.monotonic() - began
        cpu_s = after.user + after.system - cpu.user - cpu.system
        print(f"{received / 1e6:.0f} MB in {wall_s:.2f} s with {cpu_s:.2f} s of CPU")
        assert received > size
        assert cpu_s < 2.0

    on_master(tmp_path, flow, log_bytes=1 << 30)
