"""Workers: what was planned for each and what is known of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import WorkerRecord, read
from rolecall.master.store.schema import workers
from rolecall.spec.errors import StaleAttempt
from rolecall.spec.plan import GangPlan
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState

_RUNNING_ON = tuple(state for state in WorkerState if not state.ended)


async def add(connection: AsyncConnection, job: str, attempt: int, plan: GangPlan) -> None:
    """Store the workers of a plan as assigned."""
    rows = [
        {"job": job, "attempt": attempt, "state": WorkerState.ASSIGNED}
        | worker.model_dump(include={"rank", "role", "role_rank", "node"})
        for worker in plan.workers
    ]
    await connection.execute(insert(workers), rows)


async def of_attempts(
    connection: AsyncConnection, keys: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], list[WorkerRecord]]:
    """The workers of each attempt `(job, number)`, in rank order."""
    found: defaultdict[tuple[str, int], list[WorkerRecord]] = defaultdict(list)
    key = tuple_(workers.c.job, workers.c.attempt)
    for row in await connection.execute(select(workers).where(key.in_(keys)).order_by(workers.c.rank)):
        worker = _record(row)
        found[worker.job, worker.attempt].append(worker)
    return found


async def on_node(connection: AsyncConnection, node: str) -> list[WorkerRecord]:
    """The workers of `node` that have not ended, in a fixed order."""
    query = select(workers).where(workers.c.node == node, workers.c.state.in_(_RUNNING_ON))
    order = (workers.c.job, workers.c.attempt, workers.c.rank)
    return [_record(row) for row in await connection.execute(query.order_by(*order))]


async def change(connection: AsyncConnection, worker: WorkerRecord, **values: Any) -> None:
    """Change a worker that is still in the record's state; raises `StaleAttempt` when it no longer is."""
    guard = (
        workers.c.job == worker.job,
        workers.c.attempt == worker.attempt,
        workers.c.rank == worker.rank,
        workers.c.state == worker.state,
    )
    changed = await connection.execute(update(workers).where(*guard).values(**values))
    if changed.rowcount != 1:
        raise StaleAttempt(f"{worker.name} of job {worker.job} is no longer {worker.state}")


async def store(connection: AsyncConnection, before: WorkerRecord, after: WorkerRecord) -> None:
    """Replace what is known of a worker; raises `StaleAttempt` when it is no longer in the state `before` has."""
    seen = ("state", "pid", "exit_code", "failure", "spawned_at", "joined_at")
    await change(connection, before, **{name: getattr(after, name) for name in seen})


async def end_all(connection: AsyncConnection, gone: Iterable[WorkerRecord], state: WorkerState, **values: Any) -> None:
    """End each of `gone` in the same way."""
    for worker in gone:
        await change(connection, worker, state=state, **values)


def _record(row: Row[Any]) -> WorkerRecord:
    return read(WorkerRecord, row, role=Role(row.role), state=WorkerState(row.state))
