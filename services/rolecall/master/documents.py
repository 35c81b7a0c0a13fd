"""The document of a job, assembled from its records. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rolecall.master.goodput import lost, useful_share
from rolecall.master.lifecycle import start_times
from rolecall.master.store.records import (
    DETAILED_ATTEMPTS,
    TRACED_ATTEMPTS,
    AttemptSummary,
    JobEntry,
    JobRecord,
    WorkerRecord,
)
from rolecall.spec.job import AttemptDocument, JobDocument, JobOverview, Progress, WorkerDocument
from rolecall.spec.report import abridged

Members = Mapping[tuple[str, int], Sequence[WorkerRecord]]


def job_overview(
    job: JobEntry, labels: Mapping[str, str], *, progress: Progress | None, waiting_for: str | None, now: datetime
) -> JobOverview:
    """The job in a list. `progress` replaces the stored one unless it is None."""
    shown = _overview(job, labels, progress, waiting_for, now)
    return JobOverview(**(shown | {"reason": shown["reason"] and shown["reason"].partition("\n")[0]}))


def job_document(
    job: JobRecord,
    attempts: Sequence[AttemptSummary],
    workers: Members,
    labels: Mapping[str, str],
    *,
    progress: Progress | None,
    waiting_for: str | None,
    now: datetime,
) -> JobDocument:
    """The job's document with its `attempts`. `progress` replaces the stored one unless it is None.

    A job can have a thousand attempts, so `workers` has only those of the `detailed` attempts.
    """
    last = attempts[-1] if attempts else None
    times = {"start_s": start_times(last, workers.get((job.id, last.number), ())) if last else None}
    shown = _overview(job, labels, progress, waiting_for, now)
    spent = shown["progress"].spent
    own: dict[str, Any] = {
        "lost_s": spent and lost(attempts, spent, job.state, created_at=job.created_at, until=job.ended_at or now),
        "progress": shown["progress"].model_copy(update=times),
        "attempts": [
            _attempt(one, workers.get((job.id, one.number), ()), job.attempt - one.number) for one in attempts
        ],
    }
    more = {name: getattr(job, name) for name in JobDocument.model_fields if name not in shown | own}
    return JobDocument(**shown | more | own)


def _overview(
    job: JobEntry, labels: Mapping[str, str], progress: Progress | None, waiting_for: str | None, now: datetime
) -> dict[str, Any]:
    """The fields that lists and documents share."""
    newest = progress or job.progress
    own: dict[str, Any] = {
        "labels": dict(labels),
        "reason": job.reason or job.unreadable,
        "waiting_for": waiting_for,
        "progress": newest,
        "goodput": newest.spent and useful_share(newest.spent, created_at=job.created_at, until=job.ended_at or now),
    }
    return {name: getattr(job, name) for name in JobOverview.model_fields if name not in own} | own


def detailed(job: JobRecord) -> list[tuple[str, int]]:
    """The newest attempts `(job, number)`, which are shown with their workers."""
    return [(job.id, number) for number in range(max(0, job.attempt - DETAILED_ATTEMPTS) + 1, job.attempt + 1)]


def _attempt(attempt: AttemptSummary, workers: Sequence[WorkerRecord], age: int) -> AttemptDocument:
    """The document of an attempt that has `age` successors."""
    return AttemptDocument(
        number=attempt.number,
        state=attempt.state,
        cause=attempt.cause if age < DETAILED_ATTEMPTS or attempt.cause is None else abridged(attempt.cause),
        stop=attempt.stop,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        workers=[_worker(worker, traced=age < TRACED_ATTEMPTS) for worker in workers],
    )


def _worker(worker: WorkerRecord, *, traced: bool) -> WorkerDocument:
    fields = {name: getattr(worker, name) for name in WorkerDocument.model_fields}
    if worker.failure is not None and not traced:
        fields["failure"] = worker.failure.brief()
    return WorkerDocument(**fields)
