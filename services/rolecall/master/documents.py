"""A job's document, put together from the records. Pure."""

from collections.abc import Mapping, Sequence

from rolecall.master.lifecycle import start_times
from rolecall.master.store.records import AttemptSummary, JobRecord, WorkerRecord
from rolecall.spec.job import AttemptDocument, JobDocument, Progress, WorkerDocument

Members = Mapping[tuple[str, int], Sequence[WorkerRecord]]


def job_document(
    job: JobRecord,
    attempts: Sequence[AttemptSummary],
    workers: Members,
    *,
    progress: Progress | None,
    waiting_for: str | None,
) -> JobDocument:
    """The job as users see it, with its own `attempts`; `progress` is newer than the stored one, if there is any."""
    last = attempts[-1] if attempts else None
    times = {"start_s": start_times(last, workers.get((job.id, last.number), ())) if last else None}
    own = {"progress", "attempts", "waiting_for", "reason"}
    shown = {name: getattr(job, name) for name in JobDocument.model_fields if name not in own}
    return JobDocument(
        **shown,
        reason=job.reason or job.unreadable,
        waiting_for=waiting_for,
        progress=(progress or job.progress).model_copy(update=times),
        attempts=[_attempt(attempt, workers.get((job.id, attempt.number), ())) for attempt in attempts],
    )


def _attempt(attempt: AttemptSummary, workers: Sequence[WorkerRecord]) -> AttemptDocument:
    return AttemptDocument(
        number=attempt.number,
        state=attempt.state,
        cause=attempt.cause,
        stop=attempt.stop,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        workers=[_worker(worker) for worker in workers],
    )


def _worker(worker: WorkerRecord) -> WorkerDocument:
    return WorkerDocument(**{name: getattr(worker, name) for name in WorkerDocument.model_fields})
