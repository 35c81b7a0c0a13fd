"""The export of jobs to experiment trackers, while they run."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolecall.daemon_thread import run_in_daemon_thread
from rolecall.master.bounded_cache import BoundedCache
from rolecall.master.clock import Clock
from rolecall.master.documents import job_document
from rolecall.master.exporter import Accepted, Rejected
from rolecall.master.progress_lines import steps_from
from rolecall.master.store import attempts, checkpoints, jobs, labels, workers
from rolecall.master.store.database import Database
from rolecall.master.store.records import WorkerRecord
from rolecall.master.streams import StreamKey, Streams
from rolecall.spec.api import Checkpoint, Series
from rolecall.spec.errors import TrackerError
from rolecall.spec.job import JobDocument
from rolecall.spec.redaction import redact_text
from rolecall.trackers import Tracker
from rolecall.trackers.mlflow import TrackedRuns
from rolecall.trackers.tensorboard import EventFiles

_BYTES = 1 << 20
"""The maximum size of the progress lines that are held in memory, of all workers of a job."""
_FIRST_SERVER_ERROR = 500
_PASS_S = 10.0
"""The time after which the rest of a job is left to the next pass, so that other jobs are not delayed."""


@dataclass(frozen=True, slots=True)
class TrackerPlace:
    """A server or folder in which a tracker stores jobs."""

    kind: str
    """The kind of the event that records the export of an ended job."""
    shown: str
    """Its name in the event, without secrets."""
    open: Callable[[], Tracker]
    """Opens the tracker. It may block, and raise `TrackerError`."""


@dataclass(slots=True)
class _Written:
    """The part of a job that the tracker has."""

    ends: dict[StreamKey, int] = field(default_factory=lambda: defaultdict[StreamKey, int](int))
    """The offset in each progress stream up to which its steps are written."""
    reporting: set[StreamKey] = field(default_factory=set[StreamKey])
    """The streams that have had steps."""
    summary: tuple[Any, ...] | None = None
    """The rest, as far as it changes while the job runs."""
    complete: int = 0
    """The number of attempts whose steps are written; each ended before the next one began."""


class TrackerTarget:
    """An experiment tracker: a target of exports. Reads each progress stream once."""

    is_live = True

    def __init__(self, place: TrackerPlace, *, database: Database, streams: Streams, clock: Clock) -> None:
        self.kind = place.kind
        self._place = place
        self._database, self._streams, self._clock = database, streams, clock
        self._tracker: Tracker | None = None
        self._written = BoundedCache[str, _Written]()

    async def export(self, job: str) -> Accepted | Rejected:
        """Write what is new of a job. Raises `NotFound`, `UnreadableRow`."""
        complete = self._written[job].complete if job in self._written else 0
        async with self._database.read() as connection:
            record = await jobs.get(connection, job)
            tried = await attempts.of_jobs(connection, [job])
            read = [one.number for one in tried if one.number > complete]
            members = [worker for number in read for worker in await workers.of_attempt(connection, job, number)]
            labeled = await labels.of_jobs(connection, [job])
            saved = await checkpoints.of_job(connection, job)
        own = labeled.get(job, {})
        document = job_document(record, tried, {}, own, progress=None, waiting_for=None, now=self._clock.now())
        found = [Checkpoint(manifest=one.manifest, created_at=one.created_at) for one in saved]
        try:
            is_complete = await run_in_daemon_thread(self._write, document, members, found)
        except TrackerError as error:
            return Rejected(str(error), is_away=error.status >= _FIRST_SERVER_ERROR)
        return Accepted(record.ended_at if is_complete else None, f"metrics written to {self._place.shown}")

    async def forget(self, job: str) -> None:
        """Release what it holds of a job. If the job runs again, all its steps are read again."""
        self._written.pop(job, None)
        if self._tracker is not None:
            await run_in_daemon_thread(self._tracker.forget, job)  # It writes what is left to files, and closes them.

    def close(self) -> None:
        if self._tracker is not None:
            self._tracker.close()

    def _write(self, job: JobDocument, members: list[WorkerRecord], saved: list[Checkpoint]) -> bool:
        """Write what is new, for a limited time. Returns whether nothing is left."""
        if self._tracker is None:
            self._tracker = self._place.open()
        written = self._written.computed(job.id, _Written)
        summary = (job.state, job.reason, len(job.attempts), job.labels, len(saved))
        until_s, is_complete = self._clock.monotonic() + _PASS_S, False
        while not is_complete and self._clock.monotonic() < until_s:
            series, ends, is_complete = self._read(members, written)
            if ends or summary != written.summary:
                self._tracker.write(job, series, saved)
            written.ends.update(ends)
            written.summary = summary
        if is_complete:
            written.complete = job.attempts[-1].number - 1 if job.attempts else 0
        return is_complete

    def _read(self, members: list[WorkerRecord], written: _Written) -> tuple[list[Series], dict[StreamKey, int], bool]:
        """The next steps of the workers, where they end in the streams that have any, and whether these are all.

        The series of all workers that have reported are in the list, because a tracker may name values by their order.
        """
        found, news, left = list[Series](), dict[StreamKey, int](), _BYTES
        for worker in members:
            key = StreamKey(worker.job, worker.attempt, worker.rank, "progress")
            start = written.ends[key]
            points, end = steps_from(self._streams.lines(key, start), start, left) if left > 0 else ([], start)
            if end > start:
                news[key] = end
                left -= end - start
            if points:
                written.reporting.add(key)
            if key in written.reporting:
                named = {name: getattr(worker, name) for name in ("attempt", "rank", "role", "role_rank")}
                # As a client of the API gets them.
                texts = [point | {"at": point["at"].isoformat()} for point in points]
                found.append(Series(**named, points=texts))
        return found, news, left > 0


def mlflow_server(uri: str, experiment: str) -> TrackerPlace:
    """An experiment of an MLflow tracking server."""
    return TrackerPlace(
        "mlflow", f"experiment {experiment!r} of {redact_text(uri)}", lambda: TrackedRuns(uri, experiment)
    )


def tensorboard_folder(folder: Path) -> TrackerPlace:
    """A folder of TensorBoard's event files."""
    return TrackerPlace("tensorboard", str(folder), lambda: EventFiles(folder))
