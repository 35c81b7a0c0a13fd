"""The loop that brings what is stored in line with what was observed.

Every pass looks at the database alone and commits each step by itself, so that it may be cut off anywhere. It runs when
something changed, and at least every `TICK_S` seconds for what only time changes.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime, timedelta

from prometheus_client import Histogram
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master import lifecycle
from rolecall.master.access import Access
from rolecall.master.catalogue import Catalogue
from rolecall.master.lifecycle import Accusation, Step
from rolecall.master.placement import Waiting
from rolecall.master.presence import Presence
from rolecall.master.progress import ProgressBook
from rolecall.master.scheduler import Allowance, QueuedJob, schedule
from rolecall.master.signals import Signal, wait
from rolecall.master.store import attempts, checkpoints, events, jobs, nodes, workers
from rolecall.master.store.database import Database
from rolecall.master.store.records import Gang, JobRecord, WorkerRecord
from rolecall.master.trouble import Complaints
from rolecall.spec.access import Limits
from rolecall.spec.errors import Conflict
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.report import Failure
from rolecall.spec.state import JobState, WorkerState

TICK_S = 0.5
VERIFY_S = 60.0
"""How long a job waits at most for the master's look at a checkpoint that a worker reported as damaged."""
FORGET_NODE_S = 3600.0
"""Silence after which a lost node is no longer listed."""
_PLACED = tuple(state for state in JobState if state.holds_slots)
_log = logging.getLogger(__name__)


class Reconciler:
    """Places, stops and retries. It notifies `garbage` when an attempt has ended, which may have left something."""

    def __init__(
        self,
        *,
        database: Database,
        access: Access,
        catalogue: Catalogue,
        presence: Presence,
        progress: ProgressBook,
        changed: Signal,
        garbage: Signal,
        placement_seconds: Histogram,
        backfill_window: timedelta,
    ) -> None:
        self._database = database
        self._access = access
        self._catalogue = catalogue
        self._presence = presence
        self._progress = progress
        self._changed = changed
        self._garbage = garbage
        self._placement_seconds = placement_seconds
        self._backfill_window = backfill_window
        self._woken = Signal()
        self._complaints = Complaints()

    def wake(self) -> None:
        """Ask for a pass: something changed."""
        self._woken.notify()

    async def run(self) -> None:
        """Pass after pass, until cancelled. What fails is logged once; the next pass starts from the same facts."""
        while True:
            ticket = self._woken.ticket()
            pause_s = TICK_S
            try:
                pause_s = await self.reconcile()
                self._complaints.went_well("reconciling")
            except Conflict as conflict:
                _log.debug("overtaken: %s", conflict)  # by a call, which has asked for the next pass
            except Exception as error:  # noqa: BLE001 - a loop's tick: one bad pass must not end all of them
                self._complaints.failed("reconciling", error)
            await wait(ticket, pause_s)

    async def reconcile(self) -> float:
        """One pass. Returns after how many seconds the next one is due."""
        # While the database is away nobody is heard, nor lost for it: to presence it is as if we had not run.
        await self._database.ping()
        self._presence.notice_pass()
        await self._flush_progress()
        await self._lose_silent_nodes()
        while await self._advance_jobs():
            self._changed.notify()
        if await self._place_jobs():
            self._changed.notify()
        return await self._due_s()

    async def _flush_progress(self) -> None:
        if self._progress.has_news:
            async with self._database.write() as connection:
                await self._progress.flush(connection)

    async def _lose_silent_nodes(self) -> None:
        async with self._database.read() as connection:
            lost = [node.name for node in await nodes.everything(connection) if self._presence.is_lost(node.name)]
            bereft = [name for name in lost if await workers.on_node(connection, name)]
        for name in bereft:
            why = f"node {name} was lost (silent for {self._presence.silence_s(name):.1f} s)"
            async with self._database.write() as connection:
                await lose_workers(connection, name, why, _now())
            _log.warning("%s", why)
        for name in lost:
            if self._presence.silence_s(name) > FORGET_NODE_S:
                async with self._database.write() as connection:
                    await nodes.remove(connection, name)

    async def _advance_jobs(self) -> bool:
        """Take at most one step for each job; return whether any was taken."""
        async with self._database.read() as connection:
            found = await jobs.in_states(connection, (*_PLACED, JobState.QUEUED))
            gangs = await attempts.gangs(connection, [job for job in found if job.state.holds_slots])
            draining = {node.name for node in await nodes.everything(connection) if node.draining}
        moved = [await self._apart(f"advancing {gang.job.id}", self._advance_gang(gang, draining)) for gang in gangs]
        queued = [job for job in found if job.state is JobState.QUEUED]
        moved += [await self._apart(f"looking at the deadline of {job.id}", self._expire(job)) for job in queued]
        return any(moved)

    async def _apart(self, what: str, step: Awaitable[bool]) -> bool:
        """Whether the step was taken. One that fails must not hold other jobs back: it is tried again next time."""
        try:
            moved = await step
        except Conflict as conflict:
            _log.debug("%s was overtaken: %s", what, conflict)  # by a call, which has asked for the next pass
        except Exception as error:  # noqa: BLE001 - each job is a tick of its own
            self._complaints.failed(what, error)
        else:
            self._complaints.went_well(what)
            return moved
        return False

    async def _advance_gang(self, gang: Gang, draining: set[str]) -> bool:
        expendable = self._catalogue.expendable(gang.job.workload)
        dropped, unstarted = lifecycle.dropped(gang, expendable), lifecycle.never_started(gang)
        if dropped or unstarted:
            async with self._database.write() as connection:
                await workers.end_all(connection, dropped, WorkerState.LOST)
                await workers.end_all(connection, unstarted, WorkerState.STOPPED)
            return True
        step = lifecycle.next_step(gang, expendable, draining, _now())
        if step is None:
            return False
        await self._take(gang, step)
        return True

    async def _take(self, gang: Gang, step: Step) -> None:
        if not step.after.holds_slots:
            await self._flush_progress()
        async with self._database.write() as connection:
            await take_step(connection, gang, step, _now())
        _log.info("job %s attempt %d: %s%s", gang.job.id, gang.attempt.number, step.after, _because(step.reason))
        if not step.after.holds_slots:
            self._progress.forget(gang.job.id)
            self._garbage.notify()

    async def _expire(self, job: JobRecord) -> bool:
        step = lifecycle.overdue_step(job, _now())
        if step is None:
            return False
        async with self._database.write() as connection:
            await jobs.move(connection, job, step.after, _now(), step.reason or "", reason=step.reason)
        return True

    async def _place_jobs(self) -> bool:
        """Place what fits and tell the others why they wait; return whether any was placed."""
        async with self._database.read() as connection:
            ready = [job for job in await jobs.in_states(connection, [JobState.QUEUED]) if _is_ready(job)]
            if not ready:
                return False
            gangs = await attempts.gangs(connection, await jobs.in_states(connection, _PLACED))
            states = self._presence.states(await nodes.everything(connection))
        queue = [_queued(job, everywhere=self._catalogue.is_everywhere(job.workload)) for job in ready]
        taken = taken_places(gangs, self._catalogue)
        allowed = allowances(gangs, self._catalogue, self._access.limits)
        outcomes = schedule(queue, states, taken, _now(), self._backfill_window, allowed)
        return any([await self._apart(f"placing {job.id}", self._settle(job, outcomes[job.id])) for job in ready])

    async def _settle(self, job: JobRecord, outcome: GangPlan | Waiting) -> bool:
        """Whether the job is placed now."""
        if isinstance(outcome, Waiting):
            if outcome.reason != job.waiting_for:
                async with self._database.write() as connection:
                    await jobs.set_waiting(connection, job, outcome.reason)
            return False
        now = _now()
        async with self._database.write() as connection:
            avoided = not set(job.avoid or ()).isdisjoint(worker.node for worker in outcome.workers)
            resume_from = await checkpoints.newest(connection, job.id, undoubted=avoided)
            await attempts.begin(connection, job, outcome, resume_from, now)
        self._placement_seconds.observe((now - job.queued_at).total_seconds())
        _log.info("job %s attempt %d: placed %d workers", job.id, job.attempt + 1, outcome.world_size)
        return True

    async def _due_s(self) -> float:
        async with self._database.read() as connection:
            queued = await jobs.in_states(connection, [JobState.QUEUED])
        waits = [(job.not_before - _now()).total_seconds() for job in queued if job.not_before and not _is_ready(job)]
        return min([TICK_S, *waits])


async def take_step(connection: AsyncConnection, gang: Gang, step: Step, now: datetime) -> None:
    """Commit one step of a job that holds slots, and the same for its attempt."""
    accused = None if step.after.holds_slots else lifecycle.accused(gang)
    if accused is not None and not await _doubt(connection, gang, accused, now):
        accused = None
    if step.after is JobState.QUEUED:
        await _queue_again(connection, gang, step, now, accused)
    else:
        started = {"started_at": gang.job.started_at or now} if step.after is JobState.RUNNING else {}
        message = step.reason or str(step.stop or step.after)
        await jobs.move(connection, gang.job, step.after, now, message, reason=step.reason, **started)
    ends = {} if step.after.holds_slots else {"ended_at": now}
    stop = {"stop": step.stop} if step.stop else {}
    cause = {"cause": step.reason} if step.reason else {}
    await attempts.follow(connection, gang, step.attempt_state or step.after, **ends, **stop, **cause)


async def redirect_stop(connection: AsyncConnection, gang: Gang, step: Step) -> None:
    """Let a gang that is being stopped end in another way than was meant."""
    await jobs.set_reason(connection, gang.job, step.reason)
    await attempts.follow(connection, gang, JobState.STOPPING, stop=step.stop, cause=step.reason)


async def lose_workers(connection: AsyncConnection, node: str, why: str, now: datetime) -> None:
    """The workers of a node are gone with it."""
    gone: list[WorkerRecord] = await workers.on_node(connection, node)
    await workers.end_all(connection, gone, WorkerState.LOST, failure=Failure(message=why, at=now))


async def _doubt(connection: AsyncConnection, gang: Gang, accused: Accusation, now: datetime) -> bool:
    """Let the master look at a checkpoint that workers could not read; return whether there is still such a one."""
    if not await checkpoints.doubt(connection, gang.job.id, accused.manifest, now):
        return False
    await jobs.avoid(connection, gang.job, accused.nodes)
    message = f"the master verifies {accused}"
    await events.add(connection, gang.job.id, now, "checkpoint", message, attempt=gang.attempt.number)
    return True


async def _queue_again(
    connection: AsyncConnection, gang: Gang, step: Step, now: datetime, accused: Accusation | None
) -> None:
    if not step.costs_restart:
        await jobs.requeue(connection, gang.job, now, step.reason, 0.0)
        return
    newest = await checkpoints.newest(connection, gang.job.id)
    got_on = newest is not None and newest.attempt == gang.attempt.number
    crashes = 1 if got_on else gang.job.crashes + 1
    counts = {"crashes": crashes, "restarts": gang.job.restarts + 1}
    wait_s, waits_for = lifecycle.backoff_s(crashes), None
    if accused is not None:
        wait_s, waits_for = VERIFY_S, f"the master verifies {accused}, for {VERIFY_S:.0f} s at most"
    await jobs.requeue(connection, gang.job, now, step.reason, wait_s, waits_for=waits_for, **counts)


def taken_places(gangs: list[Gang], catalogue: Catalogue) -> list[WorkerPlan]:
    """The places of workers that may still have a process; one that runs everywhere takes none."""
    return [
        gang.attempt.plan.workers[worker.rank]
        for gang in gangs
        for worker in gang.workers
        if not worker.state.ended and not catalogue.is_everywhere(gang.job.workload)
    ]


def allowances(gangs: list[Gang], catalogue: Catalogue, limits: Mapping[str, Limits]) -> dict[str, Allowance]:
    """What the owners whose slots are limited use of them: as many as their workers may still have a process."""
    used: Counter[str] = Counter()
    for gang in gangs:
        used[gang.job.owner] += len(taken_places([gang], catalogue))
    return {
        owner: Allowance(limit.max_slots, used[owner]) for owner, limit in limits.items() if limit.max_slots is not None
    }


def _queued(job: JobRecord, *, everywhere: bool) -> QueuedJob:
    return QueuedJob(
        id=job.id,
        roles=job.roles,
        priority=job.priority,
        created_at=job.created_at,
        queued_at=job.queued_at,
        everywhere=everywhere,
        only=tuple(job.params.get("nodes", ())) if everywhere else (),
        owner=job.owner,
        avoid=job.avoid or (),
    )


def _is_ready(job: JobRecord) -> bool:
    return job.not_before is None or job.not_before <= _now()


def _because(reason: str | None) -> str:
    return f" ({reason.splitlines()[0]})" if reason else ""


def _now() -> datetime:
    return datetime.now(UTC)
