"""The loop that reconciles the stored state with observations.

Every pass reads the stored state (see `View`) and commits each step separately, so that it can be interrupted anywhere.
A pass runs after changes, and at least every `TICK_S` seconds for changes that only time causes.
"""

import logging
from dataclasses import dataclass

from rolecall.logs import about
from rolecall.master import lifecycle, transitions
from rolecall.master.catalogue import Catalogue
from rolecall.master.clock import Clock
from rolecall.master.lifecycle import JobStep
from rolecall.master.presence import Presence
from rolecall.master.progress import ProgressBook
from rolecall.master.signals import Signal, wait
from rolecall.master.storage_errors import ErrorLog, Pulse
from rolecall.master.store import nodes, workers
from rolecall.master.store.database import Database
from rolecall.master.store.records import Gang, JobSummary
from rolecall.master.view import View
from rolecall.master.waking import TICK_S, Waking
from rolecall.spec.errors import Conflict
from rolecall.spec.state import JobState, WorkerState

FORGET_NODE_S = 3600.0
"""Seconds of silence after which a lost node is removed."""
_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Reconciler:
    """Advances jobs that hold slots. Notifies `garbage` after the end of an attempt, which can leave files."""

    clock: Clock
    database: Database
    catalogue: Catalogue
    presence: Presence
    progress: ProgressBook
    view: View
    waking: Waking
    garbage: Signal

    def __post_init__(self) -> None:
        self.pulse = Pulse("reconciling", self.clock.monotonic)
        self._woken = Signal()
        self._errors = ErrorLog()
        self._check_all_at = 0.0

    def wake(self) -> None:
        """Request a pass."""
        self._woken.notify()

    async def run(self) -> None:
        """Run passes until cancelled. A failure is logged once; the next pass starts from the same state."""
        while True:
            ticket = self._woken.ticket()
            with self.pulse.next_pass():
                try:
                    await self.reconcile()
                except Conflict as conflict:  # A call committed first, and has requested the next pass.
                    self.pulse.succeeded = False
                    _LOG.debug("a pass was overtaken: %s", conflict, extra=about("pass_overtaken"))
            await wait(ticket, TICK_S)

    async def reconcile(self) -> None:
        """Run one pass."""
        # The first heartbeat of a node's incarnation needs the database. While it is unavailable, no pass is recorded,
        # so that no node counts as lost.
        await self.database.ping()
        self.presence.record_pass()
        await self.progress.flush(self.database)
        await self.view.refresh()
        self.progress.forget_others(self.view.gangs)
        await self._set_aside()
        await self._lose_silent_nodes()
        while await self._advance_jobs():
            pass

    async def _set_aside(self) -> None:
        """End jobs and remove nodes that can't be read, so that others don't wait for them."""
        for job, why in list(self.view.unreadable.items()):
            await self._errors.attempt(f"setting {job} aside", self._fail_unreadable(job, why), job)
        for name, why in list(self.view.unreadable_nodes.items()):
            await self._errors.attempt(f"forgetting {name}", self._forget_unreadable(name, why))

    async def _fail_unreadable(self, job: str, why: str) -> bool:
        remedy = "if a newer release stored it, run that release again and retry the job; otherwise submit it again"
        reason = f"{why}; {remedy}"
        async with self.database.write() as connection:
            ended, busy = await transitions.fail_unreadable(connection, job, reason, self.clock.now())
        self.progress.forget(job)
        self.waking.gang(job, busy)
        self.garbage.notify()
        _LOG.error("job %s is set aside: %s", job, reason, extra=about("job_set_aside", job=job))
        return ended

    async def _forget_unreadable(self, node: str, why: str) -> bool:
        async with self.database.write() as connection:
            await nodes.remove(connection, node)
        self.view.unreadable_nodes.pop(node, None)
        _LOG.error("node %s has to register again: %s", node, why, extra=about("node_row_deleted", node=node))
        return True

    async def _lose_silent_nodes(self) -> None:
        lost = [name for name in self.view.nodes if self.presence.is_lost(name)]
        if not lost:
            return
        async with self.database.read() as connection:
            nodes_with_workers = {worker.node for worker in await workers.on_nodes(connection, lost)}
        for name in sorted(nodes_with_workers):
            async with self.database.write() as connection:
                if not self.presence.is_lost(name):
                    continue  # Its heartbeat arrived while this waited for the database.
                why = f"node {name} was lost (silent for {self.presence.silence_s(name):.1f} s)"
                now, expendable = self.clock.now(), self.catalogue.expendable
                loss = await transitions.lose_workers(connection, name, why, now, expendable)
            self.waking.lost(loss)
            _LOG.warning("%s", why, extra=about("node_lost", node=name))
        if nodes_with_workers:
            await self.view.refresh()
        for name in lost:
            if self.presence.silence_s(name) > FORGET_NODE_S:
                async with self.database.write() as connection:
                    if self.presence.silence_s(name) <= FORGET_NODE_S:
                        continue  # It registered in the meantime.
                    await nodes.remove(connection, name)
                self.presence.forget(name)
                self.waking.nodes(name)

    async def _advance_jobs(self) -> bool:
        """Take at most one step for each job. Returns whether any was taken.

        Checks the jobs that have changed, and all jobs once per tick, because time alone can change them.
        """
        await self.view.refresh()
        fresh, self.view.fresh = self.view.fresh, set()
        check_all = self.clock.monotonic() >= self._check_all_at
        if check_all:
            self._check_all_at = self.clock.monotonic() + TICK_S
        draining = {name for name, node in self.view.nodes.items() if node.draining}
        gangs = [gang for job, gang in self.view.gangs.items() if check_all or job in fresh or gang.nodes & draining]
        attempt = self._errors.attempt
        moved: list[bool] = []
        for gang in gangs:
            job = gang.job.id
            moved.append(await attempt(f"advancing {job}", self._advance_gang(gang, draining), job))
        now, queue = self.clock.now(), self.view.queue.values()
        overdue = [(one, step) for one in queue if (step := lifecycle.overdue_step(one, now))]
        for one, step in overdue:
            moved.append(await attempt(f"looking at the deadline of {one.id}", self._expire(one, step), one.id))
        return any(moved)

    async def _advance_gang(self, gang: Gang, draining: set[str]) -> bool:
        """Take the next step of a job with workers, if one is due. Returns whether anything was changed."""
        expendable = self.catalogue.expendable(gang.job.workload)
        dropped, unstarted = lifecycle.dropped(gang, expendable), lifecycle.never_started(gang)
        if dropped or unstarted:
            async with self.database.write() as connection:
                await workers.end_all(connection, dropped, WorkerState.LOST)
                await workers.end_all(connection, unstarted, WorkerState.STOPPED)
            self.waking.gang(gang.job.id, {worker.node for worker in (*dropped, *unstarted)})
            return True
        step = lifecycle.next_step(gang, expendable, draining, self.clock.now())
        if step is None:
            return False
        await self._take(gang, step)
        return True

    async def _take(self, gang: Gang, step: JobStep) -> None:
        """Move the job to another state, and wake those whom it concerns."""
        if not step.after.holds_slots:
            await self.progress.flush(self.database)
        try:
            async with self.database.write() as connection:
                await transitions.take_step(connection, gang, step, self.clock.now())
        finally:
            # Also after a conflict, because the stored state differs from the view.
            self.view.note(jobs=[gang.job.id])
        if step.after is JobState.RUNNING:
            self.waking.jobs(gang.job.id)
        else:
            self.waking.gang(gang.job.id, gang.nodes)
        job, attempt = gang.job.id, gang.attempt.number
        fields = about(f"job_{step.after}", job=job, attempt=attempt)
        reason = f" ({step.reason.splitlines()[0]})" if step.reason else ""
        _LOG.info("job %s attempt %d: %s%s", job, attempt, step.after, reason, extra=fields)
        if not step.after.holds_slots:
            self.progress.forget(gang.job.id)
            self.garbage.notify()

    async def _expire(self, job: JobSummary, step: JobStep) -> bool:
        try:
            async with self.database.write() as connection:
                await transitions.apply_step(connection, job, step, self.clock.now())
        finally:
            self.waking.jobs(job.id)
        return True
