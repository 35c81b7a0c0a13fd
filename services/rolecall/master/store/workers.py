from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sqlalchemy import Row, and_, func, insert, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import WorkerRecord, member, read, readable
from rolecall.master.store.schema import workers
from rolecall.spec.errors import NotFound, StaleAttempt
from rolecall.spec.plan import GangPlan
from rolecall.spec.report import Failure
from rolecall.spec.role import Role
from rolecall.spec.state import STOPPED_STATUS, WorkerState

_RUNNING_ON = tuple(state for state in WorkerState if not state.ended)
_LEFT_ALONE = or_(
    workers.c.state.in_((WorkerState.FAILED, WorkerState.LOST)),
    and_(workers.c.state == WorkerState.STOPPED, workers.c.exit_code.is_distinct_from(STOPPED_STATUS)),
)
"""As `lifecycle.has_left_alone`."""


async def add(connection: AsyncConnection, job: str, attempt: int, plan: GangPlan) -> None:
    """Store the workers of a plan as assigned."""
    rows = [
        {"job": job, "attempt": attempt, "state": WorkerState.ASSIGNED}
        | worker.model_dump(include={"rank", "role", "role_rank", "node"})
        for worker in plan.workers
    ]
    await connection.execute(insert(workers), rows)


async def abridge(connection: AsyncConnection, job: str, attempt: int) -> None:
    """Shorten the failures of an old attempt's workers, because a job can have a thousand attempts."""
    guard = (workers.c.job == job, workers.c.attempt == attempt)
    rows = await connection.execute(
        select(workers.c.rank, workers.c.failure).where(*guard, workers.c.failure.is_not(None))
    )
    for rank, failure in rows.all():
        if isinstance(failure, Failure):
            await connection.execute(
                update(workers).where(*guard, workers.c.rank == rank).values(failure=failure.brief())
            )


async def of_attempts(
    connection: AsyncConnection, keys: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], list[WorkerRecord]]:
    """The readable workers of each attempt `(job, number)`, in rank order."""
    found = await rows_of(connection, keys)
    return {key: list(readable(rows, record, "worker")) for key, rows in found.items()}


async def of_attempt(connection: AsyncConnection, job: str, number: int) -> list[WorkerRecord]:
    """The readable workers of an attempt; none of number 0. Raises `NotFound` if there is no such attempt."""
    found = await of_attempts(connection, [(job, number)])
    if number and not found:
        raise NotFound(f"job {job} has no attempt {number}; {await _valid_attempts(connection, job)}")
    return found.get((job, number), [])


async def _valid_attempts(connection: AsyncConnection, job: str) -> str:
    """The attempts of a job in words."""
    query = select(func.min(workers.c.attempt), func.max(workers.c.attempt)).where(workers.c.job == job)
    first, last = (await connection.execute(query)).one()
    if first is None:
        return "it has none yet"
    return f"its only attempt is {first}" if first == last else f"valid: {first} to {last}"


async def rows_of(
    connection: AsyncConnection, keys: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], list[Row[Any]]]:
    """The rows of the workers of each attempt `(job, number)`, in rank order, for `record`."""
    found: defaultdict[tuple[str, int], list[Row[Any]]] = defaultdict(list)
    if keys:
        key = tuple_(workers.c.job, workers.c.attempt)
        for row in await connection.execute(select(workers).where(key.in_(keys)).order_by(workers.c.rank)):
            found[row.job, row.attempt].append(row)
    return found


async def on_node(connection: AsyncConnection, node: str) -> list[WorkerRecord]:
    """The workers of `node` that have not ended, in a fixed order."""
    return await on_nodes(connection, [node])


async def on_nodes(connection: AsyncConnection, nodes: Iterable[str]) -> list[WorkerRecord]:
    """The readable workers of `nodes` that have not ended, in a fixed order."""
    query = select(workers).where(workers.c.node.in_(tuple(nodes)), workers.c.state.in_(_RUNNING_ON))
    order = (workers.c.job, workers.c.attempt, workers.c.rank)
    return list(readable(await connection.execute(query.order_by(*order)), record, "worker"))


async def has_any_left_alone(connection: AsyncConnection, job: str, attempt: int, expendable: Collection[Role]) -> bool:
    """True if a worker of an attempt has left its gang alone; those of expendable roles don't count."""
    guard = (workers.c.job == job, workers.c.attempt == attempt, workers.c.role.not_in(tuple(expendable)))
    return await connection.scalar(select(workers.c.rank).where(*guard, _LEFT_ALONE).limit(1)) is not None


async def nodes_of(connection: AsyncConnection, job: str, attempt: int) -> set[str]:
    """The nodes of the workers of an attempt that have not ended."""
    guard = (workers.c.job == job, workers.c.attempt == attempt, workers.c.state.in_(_RUNNING_ON))
    return set(await connection.scalars(select(workers.c.node).where(*guard).distinct()))


async def end_unreadable(connection: AsyncConnection, job: str) -> list[str]:
    """Mark all workers of a job as lost, regardless of their states. Returns their nodes."""
    ended = tuple(state for state in WorkerState if state.ended)
    guard = (workers.c.job == job, workers.c.state.not_in(ended))
    nodes = list(await connection.scalars(select(workers.c.node).where(*guard).distinct()))
    await connection.execute(update(workers).where(*guard).values(state=WorkerState.LOST))
    return nodes


async def change(connection: AsyncConnection, worker: WorkerRecord, **values: Any) -> None:
    """Change a worker. Raises `StaleAttempt` if it is no longer in the record's state."""
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
    """Replace the observations of a worker. Raises `StaleAttempt` if it is no longer in the state of `before`."""
    seen = ("state", "pid", "exit_code", "failure", "spawned_at", "joined_at")
    await change(connection, before, **{name: getattr(after, name) for name in seen})


async def end_all(connection: AsyncConnection, gone: Iterable[WorkerRecord], state: WorkerState, **values: Any) -> None:
    for worker in gone:
        await change(connection, worker, state=state, **values)


def record(row: Row[Any]) -> WorkerRecord:
    """The worker of a row. Raises `UnreadableRow`."""
    return read(WorkerRecord, row, role=member(Role, row, "role"), state=member(WorkerState, row, "state"))
