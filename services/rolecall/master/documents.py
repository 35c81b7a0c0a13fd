"""The document of a job, assembled from its records. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rolecall.master.goodput import Lifetime, goodput_of, paused_since, useful_share
from rolecall.master.lifecycle import start_times
from rolecall.master.store.records import (
    DETAILED_ATTEMPTS,
    TRACED_ATTEMPTS,
    AttemptSummary,
    JobEntry,
    JobRecord,
    Pauses,
    WorkerRecord,
)
from rolecall.spec.job import AttemptDocument, JobDocument, JobOverview, Progress, WorkerDocument
from rolecall.spec.report import TimeSpent, abridged
from rolecall.spec.state import JobState

Members = Mapping[tuple[str, int], Sequence[WorkerRecord]]


def may_have_paused(job: JobEntry) -> bool:
    """Return whether `job_overview` needs the job's pauses."""
    return job.queued_at > job.created_at or job.state in {JobState.PAUSED, JobState.CANCELLED}


def job_overview(
    job: JobEntry,
    labels: Mapping[str, str],
    pauses: Pauses | None,
    *,
    progress: Progress | None,
    waiting_for: str | None,
    now: datetime,
) -> JobOverview:
    """The job in a list. `progress` replaces the stored one unless it is None."""
    newest = progress or job.progress
    ratio = newest.spent and _listed_goodput(job, newest.spent, pauses, now)
    shown = _overview(job, labels, newest, waiting_for, ratio)
    return JobOverview(**(shown | {"reason": shown["reason"] and shown["reason"].partition("\n")[0]}))


def _listed_goodput(job: JobEntry, spent: TimeSpent, pauses: Pauses | None, now: datetime) -> float:
    """The goodput without the job's attempts, as `goodput_of` computes it from them."""
    lifetime, paused = _lifetime(job, now), 0.0
    if pauses is not None:
        paused = pauses.seconds + (paused_since(pauses.last_ended_at, lifetime) if pauses.last_ended_at else 0.0)
    return useful_share(spent, (lifetime.until - job.created_at).total_seconds() - paused)


def _lifetime(job: JobEntry, now: datetime) -> Lifetime:
    return Lifetime(job.state, job.created_at, job.queued_at, job.ended_at or now)


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
    newest = progress or job.progress
    found = newest.spent and goodput_of(attempts, newest.spent, _lifetime(job, now))
    shown = _overview(job, labels, newest, waiting_for, found and found.ratio)
    own: dict[str, Any] = {
        "lost_s": found and found.lost,
        "progress": newest.model_copy(update=times),
        "attempts": [
            _attempt(one, workers.get((job.id, one.number), ()), job.attempt - one.number) for one in attempts
        ],
    }
    more = {name: getattr(job, name) for name in JobDocument.model_fields if name not in shown | own}
    return JobDocument(**shown | more | own)


def _overview(
    job: JobEntry, labels: Mapping[str, str], newest: Progress, waiting_for: str | None, goodput: float | None
) -> dict[str, Any]:
    """The fields that lists and documents share."""
    own: dict[str, Any] = {
        "labels": dict(labels),
        "reason": job.reason or job.unreadable,
        "waiting_for": waiting_for,
        "progress": newest,
        "goodput": goodput,
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
