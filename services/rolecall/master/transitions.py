"""The transactions that change a job together with its attempt and its workers.

`lifecycle` decides, the reconciler and the routes commit. Each transition is guarded by the previous state: it raises
`StaleAttempt` if another one was committed first.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master import lifecycle
from rolecall.master.lifecycle import Accusation, JobStep
from rolecall.master.store import attempts, checkpoints, events, jobs, workers
from rolecall.master.store.records import Gang, JobSummary, WorkerRecord
from rolecall.spec.report import Failure
from rolecall.spec.role import Role
from rolecall.spec.state import JobState, WorkerState

VERIFY_S = 60.0
"""The maximum time for which a job waits until the master has verified a checkpoint that a worker reported."""


async def apply_step(connection: AsyncConnection, job: JobSummary, step: JobStep, now: datetime) -> set[str]:
    """Commit a step from any state of the job, such as a user's request.

    Returns the nodes whose desired workers it may change.
    """
    if not job.state.holds_slots:
        if step.after is JobState.QUEUED:
            await jobs.requeue(connection, job, now, step.reason, 0.0)
        else:
            await jobs.move(connection, job, step.after, now, step.reason or "", reason=step.reason)
        return set()
    gang = await attempts.gang(connection, job)
    if job.state is JobState.STOPPING:
        await jobs.set_reason(connection, gang.job, step.reason)
        await attempts.follow(connection, gang, JobState.STOPPING, stop=step.stop, cause=step.reason)
    else:
        await take_step(connection, gang, step, now)
    return gang.nodes


async def take_step(connection: AsyncConnection, gang: Gang, step: JobStep, now: datetime) -> None:
    """Commit one step of a job that holds slots, and of its attempt."""
    accused = None if step.after.holds_slots else lifecycle.accused(gang)
    if accused is not None and not await _schedule_verification(connection, gang, accused, now):
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


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """The consequences of the loss of a node."""

    jobs: set[str]
    """The jobs of its workers."""
    broken: dict[str, set[str]]
    """See `broken_gangs`."""


async def lose_workers(
    connection: AsyncConnection, node: str, why: str, now: datetime, expendable: Callable[[str], Collection[Role]]
) -> NodeLoss:
    """End the workers of a lost or removed node. `expendable` returns the roles that a workload can lose."""
    gone = await workers.on_node(connection, node)
    broken = await broken_gangs(connection, gone, expendable)
    await workers.end_all(connection, gone, WorkerState.LOST, failure=Failure(message=why, at=now))
    return NodeLoss({worker.job for worker in gone}, broken)


async def broken_gangs(
    connection: AsyncConnection, leaving: Iterable[WorkerRecord], expendable: Callable[[str], Collection[Role]]
) -> dict[str, set[str]]:
    """The gangs that stop at once instead of in order because these workers leave alone: the nodes, by job.

    Call it before their ends are stored, because only the first such worker of a gang changes how the others stop.
    """
    of_attempt = defaultdict[tuple[str, int], set[Role]](set)
    for worker in leaving:
        of_attempt[worker.job, worker.attempt].add(worker.role)
    found: dict[str, set[str]] = {}
    for (job, attempt), roles in of_attempt.items():
        if await attempts.stops_in_order(connection, job, attempt):
            spared = expendable((await jobs.summary(connection, job)).workload)
            if roles - set(spared) and not await workers.has_any_left_alone(connection, job, attempt, spared):
                found[job] = await workers.nodes_of(connection, job, attempt)
    return found


async def fail_unreadable(connection: AsyncConnection, job: str, reason: str, now: datetime) -> tuple[bool, list[str]]:
    """End a job that can't be read. Returns whether it had not ended, and the nodes of its workers."""
    ended = await jobs.fail_unreadable(connection, job, reason, now)
    await attempts.fail_unreadable(connection, job, reason, now)
    return ended, await workers.end_unreadable(connection, job)


async def _schedule_verification(connection: AsyncConnection, gang: Gang, accused: Accusation, now: datetime) -> bool:
    """Schedule the verification of a checkpoint. Returns whether the checkpoint still exists."""
    if not await checkpoints.set_verification(connection, gang.job.id, accused.manifest, now):
        return False
    await jobs.avoid(connection, gang.job, accused.nodes)
    message = f"the master verifies {accused}"
    await events.add(connection, gang.job.id, now, "checkpoint", message, attempt=gang.attempt.number)
    return True


async def _queue_again(
    connection: AsyncConnection, gang: Gang, step: JobStep, now: datetime, accused: Accusation | None
) -> None:
    if not step.costs_restart:
        await jobs.requeue(connection, gang.job, now, step.reason, 0.0)
        return
    newest = await checkpoints.newest(connection, gang.job.id)
    advanced = newest is not None and newest.attempt == gang.attempt.number
    crashes = 1 if advanced else gang.job.crashes + 1
    counts = {"crashes": crashes, "restarts": gang.job.restarts + 1}
    wait_s, waits_for = lifecycle.backoff_s(crashes), None
    if accused is not None:
        wait_s, waits_for = VERIFY_S, f"the master verifies {accused}, for {VERIFY_S:.0f} s at most"
    await jobs.requeue(connection, gang.job, now, step.reason, wait_s, waits_for=waits_for, **counts)
