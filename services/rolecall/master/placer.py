"""The loop that gives queued jobs their places.

It computes in a thread of its own on what the view held at one moment, so that a wide search holds up no request. Then
it commits job by job, guarded by the job's state and by the nodes' incarnations: a plan that is stale by then fails
and is made anew. Nothing else gives places away, so that between the look and the commit places can only become free.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from prometheus_client import Histogram
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.edge.logs import about
from rolecall.master.access import Access
from rolecall.master.catalogue import Catalogue
from rolecall.master.clock import Clock
from rolecall.master.placement import Cluster, Outcome, Waiting
from rolecall.master.presence import Presence
from rolecall.master.scheduler import Allowance, QueuedJob, schedule
from rolecall.master.signals import Signal, wait
from rolecall.master.storage_errors import ErrorLog, Pulse
from rolecall.master.store import attempts, checkpoints, jobs, nodes
from rolecall.master.store.database import Database
from rolecall.master.store.records import JobSummary, NodeRecord
from rolecall.master.view import View
from rolecall.master.waking import TICK_S, Waking
from rolecall.spec.access import Limits
from rolecall.spec.errors import Conflict
from rolecall.spec.plan import GangPlan, WorkerPlan

_log = logging.getLogger(__name__)

Offer = tuple[NodeRecord, bool, str | None]
"""A node, whether it is alive, and why it takes no worker."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What decides a placement: while it stays the same, so do the outcomes."""

    version: int
    offers: tuple[Offer, ...]
    limits: Mapping[str, Limits]
    """Of each owner."""


class Placer:
    """Places what fits, and knows why the others wait."""

    def __init__(
        self,
        *,
        clock: Clock,
        database: Database,
        access: Access,
        catalogue: Catalogue,
        presence: Presence,
        view: View,
        waking: Waking,
        placement_seconds: Histogram,
        backfill_window: timedelta,
    ) -> None:
        self.pulse = Pulse(clock.monotonic)
        self._clock = clock
        self._database = database
        self._access = access
        self._catalogue = catalogue
        self._presence = presence
        self._view = view
        self._waking = waking
        self._placement_seconds = placement_seconds
        self._backfill_window = backfill_window
        self._errors = ErrorLog()
        self._woken = Signal()
        self._waiting: Mapping[tuple[str, int], Waiting] = {}
        self._cluster: tuple[tuple[Offer, ...], Cluster] | None = None
        self._settled: _Look | None = None
        self._again_at: datetime | None = None

    def wake(self) -> None:
        """Ask for a look: a job was queued, a node came, a place may be free, a token's limits changed."""
        self._woken.notify()

    def waiting_for(self, job: JobSummary) -> str | None:
        """What a queued job waits for, with the figures of this moment; else what is stored."""
        known = self._waiting.get((job.id, job.attempt)) if job.waiting_for else None
        return known.reason if known else job.waiting_for

    async def run(self) -> None:
        """Look after look, until cancelled. What fails is logged once, and tried again at the next tick."""
        with ThreadPoolExecutor(1, "placement") as pool:
            while True:
                ticket = self._woken.ticket()
                pause_s = TICK_S
                try:
                    pause_s = await self.place(pool)
                    self._errors.recovered("placing")
                    self.pulse.succeeded()
                except Exception as error:  # noqa: BLE001 - a loop's tick: one bad look must not end all of them
                    self._errors.failed("placing", error)
                    self.pulse.failed(error)
                await wait(ticket, pause_s)

    async def place(self, pool: ThreadPoolExecutor | None = None) -> float:
        """One look, computed in a thread of `pool`. Returns after how many seconds the next one is due."""
        await self._view.refresh()
        now = self._clock.now()
        look = _Look(self._view.version, self._offers(), self._access.limits)
        if look == self._settled and (self._again_at is None or now < self._again_at):
            return self._due_s(now)
        self._settled = None
        ready = [job for job in self._view.queue.values() if job.not_before is None or job.not_before <= now]
        if not ready:
            self._waiting, self._settled, self._again_at = {}, look, self._next_change(now, {})
            return self._due_s(now)
        cluster = self._cluster_of(look.offers)
        allowed = self._view.allowances(look.limits)
        asked = (ready, dict(self._view.chosen), cluster, self._view.taken(), allowed, self._view.per_node_jobs(), now)
        outcomes = await asyncio.get_running_loop().run_in_executor(pool, self._schedule, *asked)
        self._again_at = self._next_change(now, outcomes)
        if not await self._settle(ready, outcomes):
            self._settled = look
        return self._due_s(now)

    def _offers(self) -> tuple[Offer, ...]:
        states = self._presence.states(self._view.nodes.values())
        return tuple(
            (node, state.alive, state.obstacle) for node, state in zip(self._view.nodes.values(), states, strict=True)
        )

    def _cluster_of(self, offers: tuple[Offer, ...]) -> Cluster:
        """The nodes to place on; the same as last time while nothing about them has changed."""
        if self._cluster is None or self._cluster[0] != offers:
            self._cluster = offers, Cluster(self._presence.states(self._view.nodes.values()))
        return self._cluster[1]

    def _schedule(  # noqa: PLR0917 - all that a placement depends on
        self,
        ready: list[JobSummary],
        chosen: Mapping[str, tuple[str, ...]],
        cluster: Cluster,
        taken: tuple[WorkerPlan, ...],
        allowed: Mapping[str, Allowance],
        per_node_jobs: Mapping[str, str],
        now: datetime,
    ) -> dict[str, Outcome]:
        """In the placement's own thread."""
        queue = [_queued(job, chosen, per_node=self._catalogue.is_per_node(job.workload)) for job in ready]
        return schedule(queue, cluster, taken, now, self._backfill_window, allowed, per_node_jobs)

    async def _settle(self, ready: list[JobSummary], outcomes: Mapping[str, Outcome]) -> bool:
        """Commit what was decided; return whether there was any plan, after which it has to be decided anew."""
        plans = [(job, plan) for job in ready if isinstance(plan := outcomes[job.id], GangPlan)]
        waits = [(job, why) for job in ready if isinstance(why := outcomes[job.id], Waiting)]
        for job, plan in plans:
            await self._errors.attempt(f"placing {job.id}", self._begin(job, plan), job.id)
        self._waiting = {(job.id, job.attempt): why for job, why in waits}
        await self._tell(waits)
        return bool(plans)

    async def _tell(self, waits: Iterable[tuple[JobSummary, Waiting]]) -> None:
        """Store why jobs wait, where that is another reason than before."""
        news = [(job, why.lasting) for job, why in waits if why.lasting != job.waiting_for]
        if not news:
            return
        async with self._database.write() as connection:
            await jobs.set_waiting(connection, news)
        self._view.waits([(job, replace(job, waiting_for=reason)) for job, reason in news])
        self._waking.followers(*(job.id for job, _ in news))

    async def _begin(self, job: JobSummary, plan: GangPlan) -> bool:
        now = self._clock.now()
        try:
            async with self._database.write() as connection:
                record = await jobs.find(connection, job.id)
                if record is None:
                    raise Conflict("it is deleted")
                if record.unreadable is not None:
                    self._view.set_aside(job.id, record.unreadable)
                    raise Conflict(f"{record.unreadable}; the job is set aside")
                await self._check_incarnations(connection, plan)
                avoided = not set(record.avoid or ()).isdisjoint(worker.node for worker in plan.workers)
                resume_from = await checkpoints.newest(connection, job.id, undoubted=avoided)
                await attempts.begin(connection, job, plan, resume_from, now)
        except BaseException as error:
            # What is stored is not what was looked at; a commit that failed may have come through all the same.
            self._view.note(jobs=[job.id], nodes={worker.node for worker in plan.workers})
            if isinstance(error, Conflict):
                self._waking.loops()
            raise
        self._waking.gang(job.id, {worker.node for worker in plan.workers})
        self._placement_seconds.observe((now - job.queued_at).total_seconds())
        fields = about("job_placed", job=job.id, attempt=job.attempt + 1)
        _log.info("job %s attempt %d: placed %d workers", job.id, job.attempt + 1, plan.world_size, extra=fields)
        return True

    async def _check_incarnations(self, connection: AsyncConnection, plan: GangPlan) -> None:
        """Raise `Conflict` when a node of the plan was lost, restarted or began to drain since the look."""
        names = {worker.node for worker in plan.workers}
        stored = await nodes.incarnations(connection, names)
        for name in sorted(names):
            seen, now = self._view.nodes.get(name), stored.get(name)
            if seen is None or now is None or now.started != seen.started or now.draining:
                raise Conflict(f"node {name} left, restarted or began to drain while its workers were planned")
            if not self._presence.is_alive(name):
                raise Conflict(f"node {name} was lost while its workers were planned")

    def _next_change(self, now: datetime, outcomes: Mapping[str, Outcome]) -> datetime | None:
        """When time alone changes the outcomes: a back-off is over, or a job that could fit has waited for the window.

        The window of a job that could never fit, or is held back, changes nothing for the others.
        """
        queue = self._view.queue
        fitting = [job for job, outcome in outcomes.items() if isinstance(outcome, Waiting) and outcome.feasible]
        moments = [job.not_before for job in queue.values() if job.not_before]
        moments += [queue[job].queued_at + self._backfill_window for job in fitting if job in queue]
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
        avoid=job.avoid or (),
    )
