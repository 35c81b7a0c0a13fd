"""The export of ended jobs as traces to an OpenTelemetry collector."""

from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.daemon_thread import run_in_daemon_thread
from rolecall.master.exporter import Accepted, Rejected
from rolecall.master.job_trace import TRACE, CollectorAnswer, JobHistory, TraceSpan, spans_of, trace_id
from rolecall.master.store import attempts, checkpoints, events, jobs, workers
from rolecall.master.store.database import Database
from rolecall.master.store.records import DETAILED_ATTEMPTS
from rolecall.spec.errors import MissingPackage
from rolecall.spec.webhook import only_host


class Sender(Protocol):
    """Sends spans. `OtlpSender` is the real one."""

    def send(self, job: str, spans: Sequence[TraceSpan]) -> CollectorAnswer: ...

    def close(self) -> None: ...


def open_sender(endpoint: str) -> Sender:
    """The sender to an OTLP endpoint. Raises `MissingPackage`."""
    try:
        # Imported only here, because the packages are optional.
        otlp = import_module("rolecall.master.otlp")
    except ImportError as error:
        raise MissingPackage(
            f"OTEL_EXPORTER_OTLP_ENDPOINT needs more packages ({error}); install them: pip install 'rolecall[otel]', "
            "or unset the variable"
        ) from None
    return otlp.OtlpSender(endpoint)


class TraceCollector:
    """An OpenTelemetry collector: a target of exports."""

    kind = TRACE
    is_live = False

    def __init__(self, endpoint: str, database: Database) -> None:
        """Raises `MissingPackage`."""
        self._shown = only_host(endpoint)
        self._sender = open_sender(endpoint)
        self._database = database

    async def export(self, job: str) -> Accepted | Rejected:
        """Send the job's trace. Raises `NotFound`, `UnreadableRow`."""
        async with self._database.read() as connection:
            history = await _history(connection, job)
        answer = await run_in_daemon_thread(lambda: self._sender.send(job, spans_of(history)))
        if answer.error is not None:
            return Rejected(f"the collector {self._shown} does not accept the trace: {answer.error}", answer.is_away)
        # After a retry, the next trace has these spans again, with the same ids.
        lost = f", which rejected {answer.lost} of its spans" if answer.lost else ""
        return Accepted(history.job.ended_at, f"trace {trace_id(job):032x} sent to {self._shown}{lost}")

    async def forget(self, job: str) -> None:
        """It holds nothing of a job."""

    def close(self) -> None:
        """End a call that waits before it retries."""
        self._sender.close()


async def _history(connection: AsyncConnection, job: str) -> JobHistory:
    """Raises `NotFound`."""
    record = await jobs.get(connection, job)
    tried = await attempts.of_jobs(connection, [job])
    members = await workers.of_attempts(connection, [(job, one.number) for one in tried[-DETAILED_ATTEMPTS:]])
    return JobHistory(
        job=record,
        attempts=tried,
        workers={number: found for (_, number), found in members.items()},
        events=await events.of_job(connection, job),
        checkpoints=await checkpoints.of_job(connection, job),
    )
