"""The loop that places queued jobs.

It computes plans in its own thread from a snapshot of the view, so that a long search doesn't block requests. Then it
commits each job, guarded by the job's state and the nodes' incarnations. A plan that is stale by then fails and is
computed again. No other code occupies seats, so between the snapshot and the commit seats can only become free.

Python runs one thread at a time, and requests come first. So a pass is followed by a rest, which is longer than the
pass itself, however many requests and changes ask for the next one. A pass that leaves jobs undecided is followed by
another one, after a pause as long as its computation.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.logs import about
from rolecall.master.access import Access
from rolecall.master.catalogue import Catalogue
from rolecall.master.clock import Clock
from rolecall.master.instruments import Instruments
from rolecall.master.placement import Cluster, Outcome, WaitCause, Waiting
from rolecall.master.presence import Presence
from rolecall.master.scheduler import Earlier, QueuedJob, schedule
from rolecall.master.signals import Signal, wait
from rolecall.master.storage_errors import ErrorLog, Pulse
from rolecall.master.store import attempts, checkpoints, jobs, nodes
from rolecall.master.store.database import Database
from rolecall.master.store.records import Gang, JobSummary, NodeRecord
from rolecall.master.view import View
from rolecall.master.waking import TICK_S, Waking
from rolecall.spec.access import Limits
from rolecall.spec.errors import Conflict
from rolecall.spec.job import JobSpec
from rolecall.spec.plan import GangPlan

_LOG = logging.getLogger(__name__)

_REST_S, _MAX_REST_S = 60e-6, 0.25
"""The rest after a pass for each queued job, at least three times what the pass itself takes; and the longest rest."""

Offer = tuple[NodeRecord, bool, str | None]
"""A node, its liveness, and the reason why it accepts no workers."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a placement. While they stay the same, so do the outcomes."""

    offers: tuple[Offer, ...]
    limits: Mapping[str, Limits]
    """The limits of each owner."""
    gangs: Mapping[str, Gang]
    queue: tuple[QueuedJob, ...]
    """In the order of the queue."""

    def continues(self, last: "_Inputs") -> bool:
        """Return whether these are the `last` ones, except for new jobs that go after all others.

        The outcomes of the others are the same then, because none of them was a placement.
        """
        if (self.offers, self.limits, self.gangs) != (last.offers, last.limits, last.gangs):
            return False
        return self.queue[: len(last.queue)] == last.queue


@dataclass(kw_only=True, eq=False)
class Placer:
    """Places jobs, and knows the reasons why others wait."""

    clock: Clock
    database: Database
    access: Access
    catalogue: Catalogue
    presence: Presence
    view: View
    waking: Waking
    instruments: Instruments
    backfill_window: timedelta

    def __post_init__(self) -> None:
        self.pulse = Pulse("placing", self.clock.monotonic)
        self._errors = ErrorLog()
        self._woken = Signal()
        self._waiting: dict[tuple[str, int], Waiting] = {}
        self._cluster: tuple[tuple[Offer, ...], Cluster] | None = None
        self._inputs: _Inputs | None = None
        """The inputs of the last pass, unless it placed jobs."""
        self._earlier = Earlier()
        self._known: dict[str, tuple[JobSummary, QueuedJob]] = {}
        self._again_at: datetime | None = None
        self._previewing = asyncio.Lock()

    def wake(self) -> None:
        """Request a pass, because jobs, nodes, seats or limits of tokens have changed."""
        self._woken.notify()

    def causes(self) -> Counter[WaitCause]:
        """The number of queued jobs by what they wait for."""
        now = self.clock.now()
        return Counter(self._cause(job, now) for job in self.view.queue.values())

    def _cause(self, job: JobSummary, now: datetime) -> WaitCause:
        if job.not_before is not None and job.not_before > now:
            return WaitCause.BACK_OFF
        known = self._waiting.get((job.id, job.attempt))
        return known.cause if known else WaitCause.TURN

    def waiting_for(self, job: JobSummary) -> str | None:
        """The reason why a queued job waits, with current figures if available, otherwise as stored."""
        known = self._waiting.get((job.id, job.attempt)) if job.waiting_for else None
        return known.reason if known else job.waiting_for

    async def preview(self, spec: JobSpec, owner: str) -> GangPlan | Waiting:
        """The plan of a job as if it entered the queue now, or the reason why it would wait.

        Only jobs that go first can affect it. It computes in a thread, one job at a time, on a `Cluster` of its own.
        """
        async with self._previewing:
            await self.view.refresh()
            now = self.clock.now()
            job = QueuedJob(
                id=spec.id,
                roles=spec.roles,
                priority=spec.priority,
                created_at=now,
                queued_at=now,
                per_node=self.catalogue.is_per_node(spec.workload),
                only=self.catalogue.target_nodes(spec.workload, spec.params),
                owner=owner,
                resources=spec.resources,
            )
            first = [one for one in self._queue_of(self._ready(now)) if one.priority >= spec.priority]
            states = self.presence.states(self.view.nodes.values())
            search = self._search([*first, job], self.access.limits, now, Earlier(undecided={spec.id}))
            outcomes = await asyncio.to_thread(lambda: search(Cluster(states)))
        return outcomes.get(job.id) or Waiting("waiting for its turn to be placed", feasible=True)

    async def run(self) -> None:
        """Run passes until cancelled. A failure is logged once, and retried at the next tick."""
        with ThreadPoolExecutor(1, "placement") as pool:
            while True:
                ticket = self._woken.ticket()
                pause_s = TICK_S
                with self.pulse.next_pass():
                    pause_s = await self.place(pool)
                await asyncio.sleep(min(_MAX_REST_S, _REST_S * len(self.view.queue)))
                await wait(ticket, pause_s)

    async def place(self, pool: ThreadPoolExecutor | None = None) -> float:
        """Run one pass, which computes in a thread of `pool`. Returns the seconds until the next one."""
        await self.view.refresh()
        now = self.clock.now()
        ready = self._ready(now)
        inputs = _Inputs(self._offers(), self.access.limits, self.view.gangs, self._queue_of(ready))
        in_time = self._again_at is None or now < self._again_at
        holds = in_time and self._inputs is not None and inputs.continues(self._inputs)
        decided = self._earlier.waiting
        # All jobs wait by the last pass's decision, and the stored reasons are still the decided ones.
        if holds and all(job.id in decided and decided[job.id].lasting == job.waiting_for for job in ready):
            self._inputs = inputs
            return self._due_s(now)
        self._inputs = None
        earlier = self._earlier.lasting if holds else Earlier(undecided=self._earlier.undecided)
        cluster = self._cluster_of(inputs.offers)
        search = self._search(inputs.queue, inputs.limits, now, earlier)
        begin_s = self.clock.monotonic()
        outcomes = await asyncio.get_running_loop().run_in_executor(pool, search, cluster) if ready else {}
        took_s = self.clock.monotonic() - begin_s
        self._again_at = self._next_change(now, outcomes)
        waiting = await self._settle(ready, outcomes, earlier.waiting)
        self._earlier = Earlier(waiting, frozenset(job.id for job in ready if job.id not in outcomes))
        if len(waiting) == len(outcomes):
            self._inputs = inputs
        return took_s if self._earlier.undecided else self._due_s(now)

    def _ready(self, now: datetime) -> list[JobSummary]:
        """The queued jobs that have no back-off."""
        return [job for job in self.view.queue.values() if job.not_before is None or job.not_before <= now]

    def _search(
        self,
        queue: Sequence[QueuedJob],
        limits: Mapping[str, Limits],
        now: datetime,
        earlier: Earlier,
    ) -> Callable[[Cluster], dict[str, Outcome]]:
        """A function that schedules these jobs, for a thread."""
        allowed, taken, per_node_jobs = self.view.allowances(limits), self.view.taken(), self.view.per_node_jobs()

        def compute(cluster: Cluster) -> dict[str, Outcome]:
            return schedule(queue, cluster, taken, now, self.backfill_window, allowed, per_node_jobs, earlier)

        return compute

    def _queue_of(self, ready: Sequence[JobSummary]) -> tuple[QueuedJob, ...]:
        """The jobs in order for the scheduler. An unchanged one is the same object each time, for cheap comparisons."""
        before, chosen = self._known, self.view.chosen
        self._known = {
            job.id: (job, known[1])
            if (known := before.get(job.id)) and known[0] == job and known[1].only == chosen.get(job.id, ())
            else (job, _queued(job, chosen, per_node=self.catalogue.is_per_node(job.workload)))
            for job in ready
        }
        return tuple(sorted((queued for _, queued in self._known.values()), key=attrgetter("order")))

    def _offers(self) -> tuple[Offer, ...]:
        states = self.presence.states(self.view.nodes.values())
        return tuple(
            (node, state.alive, state.obstacle) for node, state in zip(self.view.nodes.values(), states, strict=True)
        )

    def _cluster_of(self, offers: tuple[Offer, ...]) -> Cluster:
        """The nodes as a `Cluster`, which is reused while their offers don't change."""
        if self._cluster is None or self._cluster[0] != offers:
            self._cluster = offers, Cluster(self.presence.states(self.view.nodes.values()))
        return self._cluster[1]

    async def _settle(
        self, ready: list[JobSummary], outcomes: Mapping[str, Outcome], known: Mapping[str, Waiting]
    ) -> dict[str, Waiting]:
        """Commit the outcomes, some of which are `known` from the last pass. Returns the reasons of jobs that wait."""
        waits = [(job, outcome) for job in ready if isinstance(outcome := outcomes.get(job.id), Waiting)]
        for job in ready:
            if isinstance(outcome := outcomes.get(job.id), GangPlan):
                await self._errors.attempt(f"placing {job.id}", self._begin(job, outcome), job.id)
        if not known:
            undecided = {(job.id, job.attempt) for job in ready if job.id not in outcomes}
            self._waiting = {key: why for key, why in self._waiting.items() if key in undecided}
        self._waiting |= {(job.id, job.attempt): why for job, why in waits}
        await self._store_reasons(waits)
        return {job.id: why for job, why in waits}

    async def _store_reasons(self, waits: Iterable[tuple[JobSummary, Waiting]]) -> None:
        """Store the reasons why jobs wait, if they have changed."""
        news = [(job, why.lasting) for job, why in waits if why.lasting != job.waiting_for]
        if not news:
            return
        async with self.database.write() as connection:
            await jobs.set_waiting(connection, news)
        self.view.waits([(job, replace(job, waiting_for=reason)) for job, reason in news])
        self.waking.followers(*(job.id for job, _ in news))

    async def _begin(self, job: JobSummary, plan: GangPlan) -> bool:
        """Commit the plan as the job's next attempt. Raises `Conflict` if it no longer fits what is stored."""
        now = self.clock.now()
        try:
            async with self.database.write() as connection:
                record = await jobs.find(connection, job.id)
                if record is None:
                    raise Conflict("it is deleted")
                if record.unreadable is not None:
                    self.view.set_aside(job.id, record.unreadable)
                    raise Conflict(f"{record.unreadable}; the job is set aside")
                await self._check_incarnations(connection, plan)
                avoided = not set(record.avoid or ()).isdisjoint(worker.node for worker in plan.workers)
                resume_from = await checkpoints.newest(connection, job.id, undoubted=avoided)
                await attempts.begin(connection, job, plan, resume_from, now)
        except BaseException as error:
            # The database differs from the snapshot, or a commit that seemed to fail has succeeded.
            self.view.note(jobs=[job.id], nodes={worker.node for worker in plan.workers})
            if isinstance(error, Conflict):
                self.waking.loops()
            raise
        self.waking.gang(job.id, {worker.node for worker in plan.workers})
        self.instruments.placement.observe((now - job.queued_at).total_seconds())
        fields = about("job_placed", job=job.id, attempt=job.attempt + 1)
        _LOG.info("job %s attempt %d: placed %d workers", job.id, job.attempt + 1, plan.world_size, extra=fields)
        return True

    async def _check_incarnations(self, connection: AsyncConnection, plan: GangPlan) -> None:
        """Raise `Conflict` if a node of the plan was lost, restarted or started to drain since the snapshot."""
        names = {worker.node for worker in plan.workers}
        stored = await nodes.incarnations(connection, names)
        for name in sorted(names):
            seen, now = self.view.nodes.get(name), stored.get(name)
            if seen is None or now is None or now.started != seen.started or now.draining:
                raise Conflict(f"node {name} left, restarted or began to drain while its workers were planned")
            if not self.presence.is_alive(name):
                raise Conflict(f"node {name} was lost while its workers were planned")

    def _next_change(self, now: datetime, outcomes: Mapping[str, Outcome]) -> datetime | None:
        """The next time at which only time changes outcomes: the end of a back-off, or of a job's backfill window.

        The window of a job that can never fit, or is held back, has no effect on other jobs.
        """
        queue = self.view.queue
        fitting = [job for job, outcome in outcomes.items() if isinstance(outcome, Waiting) and outcome.feasible]
        moments = [job.not_before for job in queue.values() if job.not_before]
        moments += [queue[job].queued_at + self.backfill_window for job in fitting if job in queue]
        return min((moment for moment in moments if moment > now), default=None)

    def _due_s(self, now: datetime) -> float:
        until = (self._again_at - now).total_seconds() if self._again_at else TICK_S
        return min(TICK_S, max(0.0, until))


def _queued(job: JobSummary, chosen: Mapping[str, tuple[str, ...]], *, per_node: bool) -> QueuedJob:
    return QueuedJob(
        id=job.id,
        roles=job.roles,
        priority=job.priority,
        created_at=job.created_at,
        queued_at=job.queued_at,
        per_node=per_node,
        only=chosen.get(job.id, ()),
        owner=job.owner,
        resources=job.resources,
        avoid=job.avoid or (),
    )
