"""The goodput of jobs, from their attempts. What can't change any more is kept, so that a scrape reads only news."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.goodput import Goodput, Past, goodput, past_of
from rolecall.master.store import attempts
from rolecall.master.store.records import AttemptSummary, EndedJob, JobSummary
from rolecall.spec.job import Progress
from rolecall.spec.report import TimeSpent


@dataclass(frozen=True, slots=True)
class Running:
    """A job that holds slots, its current attempt, and its newest progress."""

    job: JobSummary
    attempt: AttemptSummary
    progress: Progress


class History:
    """The times of the attempts that have ended."""

    def __init__(self) -> None:
        self._past: dict[tuple[str, int], Past] = {}
        """The attempts before an attempt, by job and number."""
        self._ended: dict[str, Goodput] = {}

    async def goodputs(
        self, connection: AsyncConnection, running: Sequence[Running], ended: Sequence[EndedJob], now: datetime
    ) -> dict[str, Goodput]:
        """The goodput of each job whose workload reports how it spends its time. Forgets all other jobs."""
        reporting = [one for one in running if one.progress.spent is not None]
        unread = {one.job.id for one in reporting if (one.job.id, one.attempt.number) not in self._past}
        unread |= {job.id for job in ended if job.progress.spent is not None and job.id not in self._ended}
        read = await _attempts_of(connection, unread)
        self._past = {
            key: self._past.get(key) or past_of(read.get(key[0], [])[: key[1] - 1], one.job.created_at)
            for one in reporting
            for key in [(one.job.id, one.attempt.number)]
        }
        self._ended = {
            job.id: known or _of_ended(job, read[job.id])
            for job in ended
            if (known := self._ended.get(job.id)) or read.get(job.id)
        }
        return self._ended | {one.job.id: self._of_running(one, now) for one in reporting}

    def _of_running(self, one: Running, now: datetime) -> Goodput:
        past = self._past[one.job.id, one.attempt.number]
        spent = one.progress.spent or TimeSpent()
        return goodput(past, one.attempt, spent, created_at=one.job.created_at, until=now)


def _of_ended(job: EndedJob, of_job: list[AttemptSummary]) -> Goodput:
    *before, last = of_job
    past, spent = past_of(before, job.created_at), job.progress.spent or TimeSpent()
    return goodput(past, last, spent, created_at=job.created_at, until=job.ended_at)


async def _attempts_of(connection: AsyncConnection, jobs: Iterable[str]) -> dict[str, list[AttemptSummary]]:
    jobs = list(jobs)
    found = await attempts.of_jobs(connection, jobs) if jobs else []
    return {job: list(own) for job, own in groupby(found, key=lambda attempt: attempt.job)}
