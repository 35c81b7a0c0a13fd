"""The loop that brings what is stored in line with what was observed.

Every pass looks at what is stored (see `View`) and commits each step by itself, so that it may be cut off anywhere. It
runs when something changed, and at least every `TICK_S` seconds for what only time changes.
"""

import logging

from rolecall.edge.logs import about
from rolecall.master import lifecycle, transitions
from rolecall.master.catalogue import Catalogue
from rolecall.master.clock import Clock
from rolecall.master.lifecycle import Step
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
from rolecall.spec.state import JobState

FORGET_NODE_S = 3600.0
"""Silence after which a lost node is no longer listed."""
_log = logging.getLogger(__name__)


class Reconciler:
    """Stops and retries; `Placer` places. Notifies `garbage` when an attempt has ended: it may have left something."""

    def __init__(
        self,
        *,
        clock: Clock,
        database: Database,
        catalogue: Catalogue,
        presence: Presence,
        progress: ProgressBook,
        view: View,
        waking: Waking,
        garbage: Signal,
    ) -> None:
        self.pulse = Pulse(clock.monotonic)
        self._clock = clock
        self._database = database
        self._catalogue = catalogue
        self._presence = presence
        self._progress = progress
        self._view = view
        self._waking = waking
        self._garbage = garbage
        self._woken = Signal()
        self._errors = ErrorLog()
        self._check_all_at = 0.0

    def wake(self) -> None:
        """Ask for a pass: something changed."""
        self._woken.notify()

    async def run(self) -> None:
        """Pass after pass, until cancelled. What fails is logged once; the next pass starts from the same facts."""
        while True:
            ticket = self._woken.ticket()
            try:
                await self.reconcile()
                self._errors.recovered("reconciling")
                self.pulse.succeeded()
            except Conflict as conflict:
                # By a call, which has asked for the next pass.
                _log.debug("overtaken: %s", conflict, extra=about("pass_overtaken"))
            except Exception as error:  # noqa: BLE001 - a loop's tick: one bad pass must not end all of them
                self._errors.failed("reconciling", error)
                self.pulse.failed(error)
            await wait(ticket, TICK_S)

    async def reconcile(self) -> None:
        """One pass."""
        # While the database is away nobody is heard, nor lost for it: to presence it is as if we had not run.
        await self._database.ping()
        self._presence.record_pass()
        await self._progress.flush(self._database)
        await self._view.refresh()
        await self._set_aside()
        await self._lose_silent_nodes()
        while await self._advance_jobs():
            pass

    async def _set_aside(self) -> None:
        """End jobs of which something can't be read, and forget such nodes: the others must not wait for them."""
        for job, why in list(self._view.unreadable.items()):
            await self._errors.attempt(f"setting {job} aside", self._fail_unreadable(job, why), job)
        for name, why in list(self._view.unreadable_nodes.items()):
            await self._errors.attempt(f"forgetting {name}", self._forget_unreadable(name, why))

    async def _fail_unreadable(self, job: str, why: str) -> bool:
        remedy = "if a newer release stored it, run that release again and retry the job; otherwise submit it again"
        reason = f"{why}; {remedy}"
        async with self._database.write() as connection:
            ended, busy = await transitions.fail_unreadable(connection, job, reason, self._clock.now())
        self._progress.forget(job)
        self._waking.gang(job, busy)
        self._garbage.notify()
        _log.error("job %s is set aside: %s", job, reason, extra=about("job_set_aside", job=job))
        return ended

    async def _forget_unreadable(self, node: str, why: str) -> bool:
        async with self._database.write() as connection:
            await nodes.remove(connection, node)
        self._view.unreadable_nodes.pop(node, None)
        _log.error("node %s has to register again: %s", node, why, extra=about("node_row_deleted", node=node))
        return True

    async def _lose_silent_nodes(self) -> None:
        lost = [name for name in self._view.nodes if self._presence.is_lost(name)]
        if not lost:
            return
        async with self._database.read() as connection:
            nodes_with_workers = {worker.node for worker in await workers.on_nodes(connection, lost)}
        for name in sorted(nodes_with_workers):
            why = f"node {name} was lost (silent for {self._presence.silence_s(name):.1f} s)"
            async with self._database.write() as connection:
                affected_jobs = await transitions.lose_workers(connection, name, why, self._clock.now())
            self._waking.jobs(*affected_jobs)
            _log.warning("%s", why, extra=about("node_lost", node=name))
        if nodes_with_workers:
            await self._view.refresh()
        for name in lost:
            if self._presence.silence_s(name) > FORGET_NODE_S:
                async with self._database.write() as connection:
                    await nodes.remove(connection, name)
                self._waking.nodes(name)

    async def _advance_jobs(self) -> bool:
        """Take at most one step for each job; return whether any was taken.

        Looks at those of which there is news, and once in a tick at all, for what only time changes.
        """
        await self._view.refresh()
        fresh, self._view.fresh = self._view.fresh, set()
        check_all = self._clock.monotonic() >= self._check_all_at
        if check_all:
            self._check_all_at = self._clock.monotonic() + TICK_S
        draining = {name for name, node in self._view.nodes.items() if node.draining}
        gangs = [gang for job, gang in self._view.gangs.items() if check_all or job in fresh or gang.nodes & draining]
        attempt = self._errors.attempt
        moved: list[bool] = []
        for gang in gangs:
            job = gang.job.id
            moved.append(await attempt(f"advancing {job}", self._advance_gang(gang, draining), job))
        overdue = [job for job in self._view.queue.values() if lifecycle.is_overdue(job, self._clock.now())]
        moved += [await attempt(f"looking at the deadline of {job.id}", self._expire(job), job.id) for job in overdue]
        return any(moved)

    async def _advance_gang(self, gang: Gang, draining: set[str]) -> bool:
        expendable = self._catalogue.expendable(gang.job.workload)
        dropped, unstarted = lifecycle.dropped(gang, expendable), lifecycle.never_started(gang)
        if dropped or unstarted:
            async with self._database.write() as connection:
                await transitions.end_workers(connection, dropped, unstarted)
            self._waking.gang(gang.job.id, {worker.node for worker in (*dropped, *unstarted)})
            return True
        step = lifecycle.next_step(gang, expendable, draining, self._clock.now())
        if step is None:
            return False
        await self._take(gang, step)
        return True

    async def _take(self, gang: Gang, step: Step) -> None:
        if not step.after.holds_slots:
            await self._progress.flush(self._database)
        try:
            async with self._database.write() as connection:
                await transitions.take_step(connection, gang, step, self._clock.now())
        finally:
            # Also of a step that was overtaken: what is stored is not what was looked at.
            self._view.note(jobs=[gang.job.id])
        if step.after is JobState.RUNNING:
            self._waking.jobs(gang.job.id)
        else:
            self._waking.gang(gang.job.id, gang.nodes)
        job, attempt = gang.job.id, gang.attempt.number
        fields = about(f"job_{step.after}", job=job, attempt=attempt)
        _log.info("job %s attempt %d: %s%s", job, attempt, step.after, _because(step.reason), extra=fields)
        if not step.after.holds_slots:
            self._progress.forget(gang.job.id)
            self._garbage.notify()

    async def _expire(self, job: JobSummary) -> bool:
        step = lifecycle.overdue_step(job, self._clock.now())
        if step is None:
            return False
        try:
            async with self._database.write() as connection:
                await transitions.apply_step(connection, job, step, self._clock.now())
        finally:
            self._waking.jobs(job.id)
        return True


def _because(reason: str | None) -> str:
    return f" ({reason.splitlines()[0]})" if reason else ""
