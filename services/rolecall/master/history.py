"""The goodput of jobs, from their attempts. What can't change any more is kept, so that a scrape reads only news."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.goodput import Goodput, Past, goodput, lost, past_of, useful_share
from rolecall.master.store import attempts
from rolecall.master.store.records import AttemptSummary, EndedJob, JobSummary
from rolecall.spec.job import Progress
from rolecall.spec.report import TimeSpent


@dataclass(frozen=True, slots=True)
class Running:
    """A job that holds slots, its current attempt, and its newest progress."""

    job: JobSummary
    attempt: AttemptSummary
    progress: Progress | None
    """None if the stored one is too long or unreadable, and no newer one is in memory."""


class History:
    """The times of the attempts that have ended."""

    def __init__(self) -> None:
        self._past: dict[tuple[str, int], Past] = {}
        """The attempts before an attempt, by job and number."""
        self._ended: dict[tuple[str, datetime], Goodput] = {}
        """By job and end, because a job that is retried by hand ends again."""

    async def goodputs(
        self, connection: AsyncConnection, running: Sequence[Running], ended: Sequence[EndedJob], now: datetime
    ) -> dict[str, Goodput]:
        """The goodput of each job whose workload reports how it spends its time. Forgets all other jobs."""
        reporting = [one for one in running if one.progress and one.progress.spent is not None]
        finished = [job for job in ended if job.progress.spent is not None]
        past, known = self._past, self._ended  # Another call may replace them during this one.
        unread = {one.job.id for one in reporting if (one.job.id, one.attempt.number) not in past}
        unread |= {job.id for job in finished if (job.id, job.ended_at) not in known}
        attempts_read = await attempts.of_jobs(connection, list(unread)) if unread else []
        read = {job: list(own) for job, own in groupby(attempts_read, key=lambda attempt: attempt.job)}
        self._past = {
            key: past.get(key) or past_of([it for it in read.get(key[0], ()) if it.number < key[1]], one.job.created_at)
            for one in reporting
            for key in [(one.job.id, one.attempt.number)]
        }
        self._ended = {
            key: known.get(key) or _of_ended(job, read[job.id])
            for job in finished
            for key in [(job.id, job.ended_at)]
            if key in known or job.id in read
        }
        goodputs = {job: found for (job, _), found in self._ended.items()}
        for one in reporting:
            before = self._past[one.job.id, one.attempt.number]
            spent = (one.progress and one.progress.spent) or TimeSpent()
            goodputs[one.job.id] = goodput(before, one.attempt, spent, created_at=one.job.created_at, until=now)
        return goodputs


def _of_ended(job: EndedJob, of_job: Sequence[AttemptSummary]) -> Goodput:
    spent = job.progress.spent or TimeSpent()
    found = lost(of_job, spent, job.state, created_at=job.created_at, until=job.ended_at)
    return Goodput(useful_share(spent, created_at=job.created_at, until=job.ended_at), found)
