"""The queue: who goes next, and who has to step back for whom. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from rolecall.master.everywhere import spread
from rolecall.master.placement import Cluster, Outcome, Seating, Waiting
from rolecall.spec.node import NodeState
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import Role


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """What the queue knows of a job."""

    id: str
    roles: Mapping[Role, int]
    priority: int
    created_at: datetime
    queued_at: datetime
    """When it last entered the queue."""
    everywhere: bool = False
    """Whether it runs on each node, or on each of `only`, and takes no slot."""
    only: tuple[str, ...] = ()
    owner: str = ""
    avoid: tuple[str, ...] = ()
    """Nodes that it goes to only if it fits nowhere else."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many workers the jobs of one owner may run at once, and how many run."""

    most: int
    used: int


def schedule(  # noqa: PLR0917 - all that the queue depends on
    queue: Iterable[QueuedJob],
    nodes: Cluster | Sequence[NodeState],
    taken: Sequence[WorkerPlan],
    now: datetime,
    backfill_window: timedelta,
    allowances: Mapping[str, Allowance] = MappingProxyType({}),
) -> dict[str, Outcome]:
    """A plan or a reason to wait for every queued job, in the queue's order.

    A caller that asks again about the same nodes passes them as the same `Cluster`, which keeps what it has computed.

    Jobs that fit go ahead of one that does not. Once a job that the cluster could hold has waited longer than
    `backfill_window`, those behind it leave alone the slots of its roles, and those drawn from the same machines: so
    none starves. A job that could never fit holds nobody back, nor does one that runs everywhere: it takes no slot.
    `allowances` has the owners whose slots are limited; a job that waits for its owner's other jobs holds nobody back.
    """
    cluster = nodes if isinstance(nodes, Cluster) else Cluster(nodes)
    taken, seating, allowed = list(taken), cluster.seating(taken), dict(allowances)
    held: dict[Role, Waiting] = {}  # for whom, and why that one waits
    outcomes: dict[str, Outcome] = {}
    for job in sorted(queue, key=lambda job: (-job.priority, job.created_at, job.id)):
        if job.everywhere:
            outcomes[job.id] = _addressed(spread(cluster.nodes, job.only), cluster)
            continue
        outcome = outcomes[job.id] = (
            _senseless(job) or _over_limit(job, allowed) or _held_back(job, held) or _placed(job, cluster, seating)
        )
        if isinstance(outcome, GangPlan):
            taken.extend(outcome.workers)
            seating = Seating(cluster, taken)
            if (own := allowed.get(job.owner)) is not None:
                allowed[job.owner] = replace(own, used=own.used + outcome.world_size)
        elif outcome.feasible and now - job.queued_at > backfill_window:
            whom = f"held back for job {job.id}, which goes first and is "
            why = Waiting(whom + outcome.reason, feasible=False, gist=whom + outcome.lasting)
            held = dict.fromkeys(contended(_asked(job), cluster.nodes), why) | held
    return outcomes


def contended(roles: Iterable[Role], nodes: Iterable[NodeState]) -> set[Role]:
    """`roles`, and those whose workers draw on the same ledgers of the same machines."""
    wanted = set(roles)
    ledgers = {(node.spec.machine.boot_id, node.spec.role.computes) for node in nodes if node.spec.role in wanted}
    rivals = {n.spec.role for n in nodes if (n.spec.machine.boot_id, n.spec.role.computes) in ledgers}
    return wanted | rivals


def _addressed(outcome: Outcome, cluster: Cluster) -> Outcome:
    """The plan with where its nodes are reached."""
    if isinstance(outcome, Waiting):
        return outcome
    members = {worker.node for worker in outcome.workers}
    return outcome.model_copy(update={"addresses": {name: cluster.addresses[name] for name in sorted(members)}})


def _placed(job: QueuedJob, cluster: Cluster, seating: Seating) -> Outcome:
    return _addressed(seating.place(job.roles, job.avoid), cluster)


def _senseless(job: QueuedJob) -> Waiting | None:
    """One without workers would have an empty gang: it ran everywhere once, and its workload is no longer there."""
    if _asked(job):
        return None
    return Waiting("waiting for its workload, which is not installed on the master or could not be loaded", False)


def _over_limit(job: QueuedJob, allowances: Mapping[str, Allowance]) -> Waiting | None:
    own, asked = allowances.get(job.owner), sum(job.roles.values())
    if own is None or own.used + asked <= own.most:
        return None
    why = "waiting for other jobs of its owner: token"
    uses = f"{why} {job.owner} uses {own.used} of its {own.most} slots, and this job needs {asked}"
    has = f"{why} {job.owner} has {own.most} slots, and this job needs {asked}"
    return Waiting(uses, feasible=False, gist=has)


def _held_back(job: QueuedJob, held: Mapping[Role, Waiting]) -> Waiting | None:
    return next((held[role] for role in sorted(_asked(job)) if role in held), None)


def _asked(job: QueuedJob) -> set[Role]:
    return {role for role, count in job.roles.items() if count}
