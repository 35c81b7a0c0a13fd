"""A view of the live jobs and the nodes in memory, which reads only changes.

Code that commits a change of a job or a node calls `note`. `refresh` reads the noted ones, and all of them at the
start, after a failure, and every `_READ_ALL_S` seconds. The values are immutable, so that a placement can use them in
another thread while the view changes.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.catalogue import Catalogue
from rolecall.master.scheduler import Allowance, PerNodeJob, slots_of
from rolecall.master.store import attempts, jobs, nodes
from rolecall.master.store.database import Database
from rolecall.master.store.jobs import Summaries
from rolecall.master.store.records import Gang, JobSummary, NodeRecord
from rolecall.spec.access import Limits
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.state import JobState

_READ_ALL_S = 30.0
_PAGE = 100
"""The number of jobs that are read at a time, so that the event loop can do other work in between."""


class View:
    """The live jobs and the nodes, as last read."""

    def __init__(self, database: Database, catalogue: Catalogue, now: Callable[[], float]) -> None:
        self.queue: dict[str, JobSummary] = {}
        self.chosen: dict[str, tuple[str, ...]] = {}
        """The nodes that queued per-node jobs request."""
        self.gangs: dict[str, Gang] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.unreadable: dict[str, str] = {}
        """Live jobs that can't be read, and the reasons."""
        self.unreadable_nodes: dict[str, str] = {}
        self.fresh: set[str] = set()
        """Gangs that were read since the reconciler last emptied this set."""
        self._database = database
        self._catalogue = catalogue
        self._now = now
        self._aside: dict[str, str] = {}
        self._jobs: set[str] = set()
        self._nodes: set[str] = set()
        self._read_all_at = 0.0
        self._lock = asyncio.Lock()

    def note(self, jobs: Iterable[str] = (), nodes: Iterable[str] = ()) -> None:
        """Record that the stored state of these has changed."""
        self._jobs.update(jobs)
        self._nodes.update(nodes)

    async def refresh(self) -> None:
        """Read the noted changes."""
        async with self._lock:
            due = self._now() >= self._read_all_at
            if not (due or self._jobs or self._nodes):
                return
            noted_jobs, noted_nodes = self._jobs, self._nodes
            self._jobs, self._nodes = set(), set()
            try:
                async with self._database.read() as connection:
                    await self._read_jobs(connection, None if due else noted_jobs)
                    await self._read_nodes(connection, None if due else noted_nodes)
            except BaseException:
                self._read_all_at = 0.0
                raise
            if due:
                self._read_all_at = self._now() + _READ_ALL_S

    def set_aside(self, job: str, why: str) -> None:
        """Record that a job's parameters, which the view itself doesn't read, can't be read."""
        self._aside[job] = why

    def waits(self, reasons: Iterable[tuple[JobSummary, JobSummary]]) -> None:
        """Replace queued jobs by their newly stored versions, unless they have changed since."""
        for before, after in reasons:
            if self.queue.get(before.id) is before:
                self.queue[before.id] = after

    def taken(self) -> tuple[WorkerPlan, ...]:
        """The seats of workers that can still have a process. Workers of per-node jobs have none."""
        seated = [gang for gang in self.gangs.values() if not self._catalogue.is_per_node(gang.job.workload)]
        return tuple(place for gang in seated for place in _places(gang))

    def allowances(self, limits: Mapping[str, Limits]) -> dict[str, Allowance]:
        """The use of each limited owner: the slots of its workers that can still have a process, also those of per-node
        jobs."""
        limited = {owner: limit.max_slots for owner, limit in limits.items() if limit.max_slots is not None}
        used: Counter[str] = Counter()
        specs = {name: node.spec for name, node in self.nodes.items()}
        for gang in self.gangs.values():
            if gang.job.owner in limited:
                used[gang.job.owner] += slots_of(_places(gang), specs)
        return {owner: Allowance(limit, used[owner]) for owner, limit in limited.items()}

    def per_node_jobs(self) -> dict[str, PerNodeJob]:
        """The nodes on which a per-node job can still have a process, with that job."""
        per_node_gangs = [gang for gang in self.gangs.values() if self._catalogue.is_per_node(gang.job.workload)]
        return {
            place.node: PerNodeJob(gang.job.id, gang.job.owner) for gang in per_node_gangs for place in _places(gang)
        }

    async def _read_jobs(self, connection: AsyncConnection, among: Collection[str] | None) -> None:
        if among is not None and not among:
            return
        found = await jobs.live(connection, among) if among else await _all_live(connection)
        held = [job for job in found.live.values() if job.state.holds_slots]
        gangs = await attempts.gangs(connection, held)
        queue = {job.id: job for job in found.live.values() if job.state is JobState.QUEUED}
        # The reasons for setting `among` aside, or all jobs, are used now or obsolete.
        removed = {job: self._aside.pop(job) for job in list(self._aside) if among is None or job in among}
        aside = {job: why for job, why in removed.items() if job in queue}
        queue = {job: one for job, one in queue.items() if job not in aside}
        per_node = [job for job in queue.values() if self._catalogue.is_per_node(job.workload)]
        named = await jobs.parameters(connection, [job.id for job in per_node]) if per_node else {}
        if among is None:
            among = {*self.queue, *self.gangs, *self.unreadable}
        gone = set(among)
        self.queue = {job: one for job, one in self.queue.items() if job not in gone} | queue
        self.chosen = {job: one for job, one in self.chosen.items() if job not in gone} | {
            job: self._catalogue.target_nodes(queue[job].workload, params) for job, params in named.items()
        }
        self.gangs = {job: one for job, one in self.gangs.items() if job not in gone} | {
            gang.job.id: gang for gang in gangs.found
        }
        lacking = {job.id: "it has no attempt" for job in held} | found.unreadable | gangs.unreadable | aside
        broken = {job: why for job, why in lacking.items() if job not in self.gangs}
        self.unreadable = {job: why for job, why in self.unreadable.items() if job not in gone} | broken
        self.fresh |= {gang.job.id for gang in gangs.found}

    async def _read_nodes(self, connection: AsyncConnection, among: Collection[str] | None) -> None:
        if among is not None and not among:
            return
        found = await nodes.load(connection, among)
        gone = {*self.nodes, *self.unreadable_nodes} if among is None else set(among)
        kept = {name: one for name, one in self.nodes.items() if name not in gone}
        self.nodes = dict(sorted((kept | found.known).items()))
        broken = {name: why for name, why in self.unreadable_nodes.items() if name not in gone}
        self.unreadable_nodes = broken | found.unreadable


def _places(gang: Gang) -> list[WorkerPlan]:
    return [gang.attempt.plan.workers[worker.rank] for worker in gang.workers if not worker.state.ended]


async def _all_live(connection: AsyncConnection) -> Summaries:
    found, after = Summaries(), -1
    while True:
        page = await jobs.live(connection, after=after, limit=_PAGE)
        found.live.update(page.live)
        found.unreadable.update(page.unreadable)
        if page.last is None:
            return found
        after = page.last
        await asyncio.sleep(0)
