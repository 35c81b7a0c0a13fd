"""Traces of jobs, sent by a real master to a receiver that speaks OTLP over HTTP."""

import asyncio
import gzip
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from rolecall.master import exporter, tracer
from rolecall.master.job_trace import span_id, trace_id
from rolecall.settings.child_environments import for_nodes, for_workers
from rolecall.settings.private_paths import private_paths
from rolecall.spec.errors import SettingsError
from rolecall.spec.state import WorkerState
from rolecall.spec.wire import DesiredWorker

from .harness import Client, ManualClock, Node, failure, line, on_master, one_trainer, still_master

ONE = {"roles": {"parameter-server": 0, "trainer": 1}}


class Receiver:
    """The spans that it was sent. It refuses all while `status` is another one than 200."""

    def __init__(self) -> None:
        self.status, self.calls, self.rejected = 200, 0, 0
        self.spans: list[Span] = []
        self.resources: set[str] = set()

    @contextmanager
    def serving(self) -> Generator[str]:
        """Serve, at the endpoint that is returned."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.calls += 1
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.status == 200 and self.path == "/v1/traces":
                    receiver.take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
                answer = ExportTraceServiceResponse()
                if receiver.rejected:
                    answer.partial_success.rejected_spans = receiver.rejected
                content = answer.SerializeToString()
                self.send_response(receiver.status)
                self.send_header("Content-Length", f"{len(content)}")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield f"http://127.0.0.1:{server.server_port}"
            server.shutdown()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources |= {f"{one.key}={one.value.string_value}" for one in resource.resource.attributes}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> Span:
        (found,) = [span for span in self.spans if span.name == name]
        return found


async def running(client: Client, **more: Any) -> tuple[Node, str, DesiredWorker]:
    """A node with a trainer, a job that runs on it, and the job's worker."""
    node = await one_trainer(client)
    job = (await client.submit(**ONE, **more))["id"]
    (worker,) = await node.workers()
    await node.say(worker, WorkerState.RUNNING)
    await client.until(job, "running")
    return node, job, worker


async def sent(client: Client, job: str, times: int = 1) -> str:
    """The message of the event that the job's trace was sent, once it was sent that many times."""
    async with asyncio.timeout(20):
        while True:
            events = (await client.user("GET", f"/jobs/{job}/events")).json()["events"]
            found = [one["message"] for one in events if one["kind"] == "trace"]
            if len(found) == times:
                return found[-1]
            await asyncio.sleep(0.05)


def attributes(span: Span) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


@pytest.mark.slow
async def test_a_job_that_fails_and_succeeds_after_a_retry_has_a_trace_of_both(tmp_path: Path) -> None:
    receiver = Receiver()
    with receiver.serving() as endpoint:
        async with on_master(tmp_path, otlp_endpoint=endpoint) as client:
            node, job, worker = await running(client, max_restarts=0, name="broken")
            await node.say(worker, WorkerState.FAILED, failure=failure("ValueError: no rows"))
            await client.until(job, "failed")
            assert await sent(client, job) == f"trace {trace_id(job):032x} sent to {endpoint}/***"
            first = list(receiver.spans)
            root, attempt = receiver.named("job toy"), receiver.named("attempt")
            assert {span.trace_id for span in first} == {trace_id(job).to_bytes(16, "big")}
            assert attempt.span_id == span_id(job, "attempt/1").to_bytes(8, "big")
            assert (root.parent_span_id, attempt.parent_span_id) == (b"", root.span_id)
            for span in (root, attempt):
                assert span.status.code == Status.STATUS_CODE_ERROR
                assert "ValueError: no rows" in span.status.message
            assert attributes(root).items() >= {"rolecall.job": job, "rolecall.state": "failed"}.items()
            phases = [receiver.named(name) for name in ("placement", "starting", "first step")]
            assert {span.parent_span_id for span in phases} == {attempt.span_id}
            for begin, end in pairwise(phases):
                assert begin.start_time_unix_nano <= begin.end_time_unix_nano == end.start_time_unix_nano
            queue = receiver.named("queue")
            assert queue.start_time_unix_nano == root.start_time_unix_nano
            assert queue.end_time_unix_nano <= attempt.start_time_unix_nano + 1_000_000
            assert "service.name=rolecall" in receiver.resources

            receiver.spans.clear()
            await client.user("POST", f"/jobs/{job}/retry")
            (worker,) = await node.workers()
            await node.say(worker, WorkerState.RUNNING)
            await node.say(worker, WorkerState.SUCCEEDED)
            await client.until(job, "succeeded")
            await sent(client, job, times=2)
            again = receiver.named("job toy")
            assert again.status.code == Status.STATUS_CODE_OK
            assert again.span_id != root.span_id
            assert again.trace_id == root.trace_id
            assert receiver.named("attempt").span_id == span_id(job, "attempt/2").to_bytes(8, "big")
            scraped = (await client.user("GET", "/metrics")).text
            assert 'rolecall_exports_total{outcome="accepted",target="trace"} 2.0' in scraped


@pytest.mark.slow
async def test_a_collector_that_refuses_delays_nothing_and_gets_the_trace_later_from_another_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_MAX_PAUSE_S", 2.0)
    receiver = Receiver()
    receiver.status = 400
    with receiver.serving() as endpoint:
        async with on_master(tmp_path, otlp_endpoint=endpoint) as client:
            with caplog.at_level(logging.WARNING):
                job = (await client.submit())["id"]
                await client.user("POST", f"/jobs/{job}/cancel")
                async with asyncio.timeout(20):
                    while receiver.calls < 3:
                        assert (await client.user("GET", f"/jobs/{job}")).is_success
                        await asyncio.sleep(0.05)
            warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
            assert len(warned) == 1, warned
            shown = f"the collector {endpoint}/*** does not accept the trace: HTTP status 400"
            assert warned[0].startswith(f"job {job} can't be exported (trace): {shown}")
        receiver.status = 200
        async with on_master(tmp_path, otlp_endpoint=endpoint) as client:
            await sent(client, job)
        assert receiver.named("job toy").status.code == Status.STATUS_CODE_UNSET
        count = len(receiver.spans)
        async with on_master(tmp_path, otlp_endpoint=endpoint) as client:
            assert await client.master.exporters["traces"].export_due()
        assert len(receiver.spans) == count, "it is sent once"


async def test_the_address_of_a_collector_that_fails_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with on_master(tmp_path, clock=clock) as client:
        job = (await client.submit())["id"]
        await client.user("POST", f"/jobs/{job}/cancel")
        await client.until(job, "cancelled")
    receiver = Receiver()
    receiver.status = 503
    with caplog.at_level(logging.DEBUG, "opentelemetry"), receiver.serving() as endpoint:
        secret = endpoint.replace("http://", "http://user:password@") + "/secret"
        async with still_master(tmp_path, clock, otlp_endpoint=secret) as master:
            exporter = master.exporters["traces"]
            run = asyncio.create_task(exporter.export_due())
            async with asyncio.timeout(20):
                while not receiver.calls:
                    await asyncio.sleep(0.02)
            exporter.target.close()  # It waits before it tries again.
            assert not await run
    assert "HTTP status 503" in caplog.text
    assert "secret" not in caplog.text
    assert "password" not in caplog.text


@pytest.mark.slow
async def test_rejected_spans_are_counted(tmp_path: Path) -> None:
    receiver = Receiver()
    receiver.rejected = 2
    with receiver.serving() as endpoint:
        async with on_master(tmp_path, otlp_endpoint=endpoint) as client:
            job = (await client.submit())["id"]
            await client.user("POST", f"/jobs/{job}/cancel")
            assert (await sent(client, job)).endswith(f"sent to {endpoint}/***, which rejected 2 of its spans")


async def test_a_trace_is_dropped_an_hour_after_the_end(tmp_path: Path) -> None:
    receiver, clock = Receiver(), ManualClock()
    with receiver.serving() as endpoint:
        async with on_master(tmp_path, clock=clock) as client:
            job = (await client.submit())["id"]
            await client.user("POST", f"/jobs/{job}/cancel")
            await client.until(job, "cancelled")
        clock.advance(exporter.KEPT / timedelta(seconds=1) + 1)
        async with still_master(tmp_path, clock, otlp_endpoint=endpoint) as master:
            assert await master.exporters["traces"].export_due()
    assert receiver.calls == 0


def test_nodes_and_workers_do_not_get_the_collectors_secrets() -> None:
    names = ("ENDPOINT", "HEADERS", "TRACES_ENDPOINT", "TRACES_HEADERS", "METRICS_HEADERS", "CERTIFICATE")
    given = {f"OTEL_EXPORTER_OTLP_{name}": "authorization=secret" for name in names} | {"A": "b"}
    for passed in (for_nodes(given), for_workers(given)):
        assert given.keys() & passed.keys() == {"A"}


def test_the_collectors_private_key_is_a_private_path() -> None:
    given = {"OTEL_EXPORTER_OTLP_CLIENT_KEY": "/keys/collector.pem"}
    assert Path("/keys/collector.pem") in private_paths(for_nodes(given))


@pytest.mark.slow
async def test_a_restart_is_two_attempts_and_two_waits_in_one_trace(tmp_path: Path) -> None:
    receiver = Receiver()
    with receiver.serving() as endpoint:
        async with on_master(tmp_path, otlp_endpoint=endpoint) as client:
            node, job, worker = await running(client)
            await node.say(worker, WorkerState.FAILED, failure=failure("ValueError: broken"))
            await client.until(job, "queued")
            node.reports.clear()
            (worker,) = await node.workers()
            await node.say(worker, WorkerState.RUNNING)
            await client.until(job, "running")
            await client.checkpoint(job, 2, 5)
            await node.progress(worker, line("first_step", step=1), line("event", message="half"))
            await node.say(worker, WorkerState.SUCCEEDED)
            await client.until(job, "succeeded")
            await sent(client, job)
    names = {span.span_id: span.name for span in receiver.spans}
    assert len(names) == len(receiver.spans)
    tree = sorted((names.get(span.parent_span_id, ""), span.name) for span in receiver.spans)
    assert tree == sorted(
        [
            ("", "job toy"),
            *[("job toy", name) for name in ("queue", "queue", "attempt", "attempt")],
            *[("attempt", name) for name in ("placement", "starting", "first step", "stopping")],
            *[("attempt", name) for name in ("placement", "starting", "first step", "training")],
        ]
    )
    first, second = (span for span in receiver.spans if span.name == "attempt")
    assert first.status.code == Status.STATUS_CODE_ERROR
    assert receiver.named("job toy").status.code == second.status.code == Status.STATUS_CODE_OK
    assert {"checkpoint", "worker"} <= {event.name for event in second.events}
    _, again = (span for span in receiver.spans if span.name == "queue")
    assert "ValueError: broken" in attributes(again)["rolecall.reason"]


@pytest.mark.slow
async def test_the_trace_is_whole_when_the_clock_of_another_master_is_behind(tmp_path: Path) -> None:
    receiver, clock = Receiver(), ManualClock()
    with receiver.serving() as endpoint:
        async with on_master(tmp_path, clock=clock) as client:
            node = await one_trainer(client)
            job = (await client.submit(**ONE, max_restarts=0))["id"]
            for _ in range(2):
                (worker,) = await node.workers()
                await node.say(worker, WorkerState.FAILED, failure=failure("ValueError: no rows"))
                await client.until(job, "failed")
                node.reports.clear()
                clock.advance(-60)
                await client.user("POST", f"/jobs/{job}/retry")
            await client.user("POST", f"/jobs/{job}/cancel")
            await client.until(job, "cancelled")
        async with still_master(tmp_path, clock, otlp_endpoint=endpoint) as master:
            assert await master.exporters["traces"].export_due()
    assert [span.name for span in receiver.spans].count("job toy") == 3
    numbers = {attributes(span)["rolecall.attempt"] for span in receiver.spans if span.name == "attempt"}
    assert numbers >= {1, 2}


def test_the_remedy_for_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(tracer, "import_module", missing)
    with pytest.raises(SettingsError, match=r"pip install 'rolecall\[otel\]'"):
        tracer.open_sender("http://127.0.0.1:1")
