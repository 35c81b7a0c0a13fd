"""A job's document, put together from the records. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from rolecall.master.lifecycle import start_times
from rolecall.master.store.records import AttemptRecord, Gang, JobRecord, WorkerRecord
from rolecall.spec.job import AttemptDocument, JobDocument, Progress, WorkerDocument

Members = Mapping[tuple[str, int], Sequence[WorkerRecord]]


def job_document(
    job: JobRecord, attempts: Iterable[AttemptRecord], workers: Members, progress: Progress | None
) -> JobDocument:
    """The job as users see it; `progress` is newer than the stored one, if there is any."""
    mine = [attempt for attempt in attempts if attempt.job == job.id]
    last = mine[-1] if mine else None
    gang = last and Gang(job=job, attempt=last, workers=tuple(workers.get((job.id, last.number), ())))
    times = {"start_s": start_times(gang) if gang else None}
    shown = {name: getattr(job, name) for name in JobDocument.model_fields if name not in {"progress", "attempts"}}
    return JobDocument(
        **shown,
        progress=(progress or job.progress).model_copy(update=times),
        attempts=[_attempt(attempt, workers.get((job.id, attempt.number), ())) for attempt in mine],
    )


def _attempt(attempt: AttemptRecord, workers: Sequence[WorkerRecord]) -> AttemptDocument:
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
