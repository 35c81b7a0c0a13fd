"""Lists of jobs for users: those that match a selection, newest first or in the order of the queue."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import accumulate
from typing import Literal, NamedTuple, Self

from sqlalchemy import ColumnElement, and_, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.cursors import from_cursor, to_cursor
from rolecall.master.store.jobs import shown, visible
from rolecall.master.store.records import JobEntry
from rolecall.master.store.schema import jobs, labels
from rolecall.spec.state import JobState

Order = Literal["newest", "queue"]
REASON_CHARS = 1000
"""The length to which reasons are cut. They can contain the output of compilers and tracebacks."""
PAGE_BYTES = 4 << 20
"""The size at which a page ends. A job that is larger is alone on its page."""
_JOB_CHARS = 2000
"""A bound on the usual size of a job without its progress and labels."""
_NAMES = tuple(one.name for one in fields(JobEntry) if one.name not in {"unreadable", "reason"})
_COLUMNS = (*(jobs.c[name] for name in _NAMES), func.substr(jobs.c.reason, 1, REASON_CHARS).label("reason"))


@dataclass(frozen=True, slots=True)
class Selection:
    """The properties of the jobs to list. Empty values and None select all jobs."""

    states: tuple[JobState, ...] = ()
    workload: str | None = None
    name: str | None = None
    """A part of the name, in any case."""
    owner: str | None = None
    labels: tuple[tuple[str, str | None], ...] = ()
    """Names and values of labels that a job must have; None stands for any value."""
    created_after: datetime | None = None
    created_before: datetime | None = None


class ListPlace(NamedTuple):
    """The place of a job in a list."""

    priority: int
    sequence: int

    @classmethod
    def of(cls, job: JobEntry) -> Self:
        return cls(job.priority, job.sequence)

    @classmethod
    def parse(cls, cursor: str) -> Self:
        """The place of a cursor of the API. Raises `ValueError`."""
        return cls(*from_cursor(cursor, 2))

    @property
    def cursor(self) -> str:
        return to_cursor(self)

    def next(self, order: Order) -> ColumnElement[bool]:
        """The condition for the jobs that follow."""
        priority, sequence = jobs.c.priority, jobs.c.sequence
        if order == "newest":
            return sequence < self.sequence
        return or_(priority < self.priority, and_(priority == self.priority, sequence > self.sequence))


async def page(
    connection: AsyncConnection,
    selection: Selection,
    limit: int,
    after: ListPlace | None = None,
    order: Order = "newest",
) -> tuple[list[JobEntry], ListPlace | None]:
    """Up to `limit` jobs that follow `after` in this order, and the last place of the page if there are more.

    The page has fewer jobs if they are large. Their sizes come first, so that the other jobs are not read.
    """
    keys = (jobs.c.sequence.desc(),) if order == "newest" else (jobs.c.priority.desc(), jobs.c.sequence)
    query = select(jobs.c.priority, jobs.c.sequence, _size()).where(visible(), *_conditions(selection)).order_by(*keys)
    query = query if after is None else query.where(after.next(order))
    sized = (await connection.execute(query.limit(limit + 1))).all()
    totals = accumulate(size for _, _, size in sized[:limit])
    places = [
        ListPlace(priority, sequence)
        for number, ((priority, sequence, _), total) in enumerate(zip(sized, totals, strict=False))
        if number == 0 or total <= PAGE_BYTES
    ]
    chosen = jobs.c.sequence.in_([place.sequence for place in places])
    rows = await connection.execute(select(*_COLUMNS).where(chosen).order_by(*keys))
    return [shown(JobEntry, row) for row in rows], places[-1] if len(places) < len(sized) else None


def _size() -> ColumnElement[int]:
    """The approximate size of a listed job, in characters because SQLite before 3.43 can't count bytes."""
    labeled = select(func.sum(func.length(labels.c.name) + func.length(labels.c.value))).where(
        labels.c.job == jobs.c.id
    )
    return _JOB_CHARS + func.length(jobs.c.progress) + func.coalesce(labeled.scalar_subquery(), 0)


async def has_workload(connection: AsyncConnection, workload: str, owner: str | None) -> bool:
    """Return whether there is a job of this workload, and of this owner if one is given."""
    conditions = _conditions(Selection(workload=workload, owner=owner))
    return bool(await connection.scalar(select(exists().where(visible(), *conditions))))


def _conditions(selection: Selection) -> Iterator[ColumnElement[bool]]:
    if selection.states:
        yield jobs.c.state.in_(selection.states)
    if selection.workload is not None:
        yield jobs.c.workload == selection.workload
    if selection.name is not None:
        yield jobs.c.name.icontains(selection.name, autoescape=True)
    if selection.owner is not None:
        yield jobs.c.owner == selection.owner
    if selection.created_after is not None:
        yield jobs.c.created_at > selection.created_after
    if selection.created_before is not None:
        yield jobs.c.created_at < selection.created_before
    for name, value in selection.labels:
        has_value = () if value is None else (labels.c.value == value,)
        yield exists().where(labels.c.job == jobs.c.id, labels.c.name == name, *has_value)
