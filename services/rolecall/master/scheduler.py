"""The queue: who goes next, and who has to step back for whom. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from rolecall.master.per_node import spread
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
    per_node: bool = False
    """Whether it runs on each node, or on each of `only`, and takes no slot."""
    only: tuple[str, ...] = ()
    owner: str = ""
    avoid: tuple[str, ...] = ()
    """Nodes that it goes to only if it fits nowhere else."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many workers the jobs of one owner may run at once, and how many run."""

    limit: int
    used: int


def schedule(  # noqa: PLR0917 - all that the queue depends on
    queue: Iterable[QueuedJob],
    nodes: Cluster | Sequence[NodeState],
    taken: Sequence[WorkerPlan],
    now: datetime,
    backfill_window: timedelta,
    allowances: Mapping[str, Allowance] = MappingProxyType({}),
    per_node_jobs: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Outcome]:
    """A plan or a reason to wait for every queued job, in the queue's order.

    A caller that asks again about the same nodes passes them as the same `Cluster`, which keeps what it has computed.

    Jobs that fit go ahead of one that does not. Once a job that the cluster could hold has waited longer than
    `backfill_window`, those behind it leave alone the slots of its roles, and those drawn from the same machines: so
    none starves. A job that could never fit holds nobody back.
    `allowances` has the owners whose slots are limited. A job that waits for its owner's other jobs blocks none.
    `per_node_jobs` maps each node with a worker of a per-node job to that job. Per-node jobs take no slots, so they
    neither block other jobs nor wait for them, but a node runs only one of them at a time.
    """
    cluster = nodes if isinstance(nodes, Cluster) else Cluster(nodes)
    taken, seating, allowed, per_node_jobs = list(taken), cluster.seating(taken), dict(allowances), dict(per_node_jobs)
    held: dict[Role, Waiting] = {}  # for whom, and why that one waits
    outcomes: dict[str, Outcome] = {}
    for job in sorted(queue, key=lambda job: (-job.priority, job.created_at, job.id)):
        outcome = outcomes[job.id] = (
            _place_per_node(job, cluster, allowed, per_node_jobs)
            if job.per_node
            else _without_workers(job)
            or _over_limit(job, sum(job.roles.values()), allowed)
            or _held_back(job, held)
            or _placed(job, cluster, seating)
        )
        if isinstance(outcome, GangPlan):
            if not job.per_node:
                taken.extend(outcome.workers)
                seating = Seating(cluster, taken)
            if (own := allowed.get(job.owner)) is not None:
                allowed[job.owner] = replace(own, used=own.used + outcome.world_size)
        elif outcome.feasible and now - job.queued_at > backfill_window:
            prefix = f"held back for job {job.id}, which goes first and is "
            why = Waiting(prefix + outcome.reason, feasible=False, gist=prefix + outcome.lasting)
            held = dict.fromkeys(contended(_roles(job), cluster.nodes), why) | held
    return outcomes


def contended(roles: Iterable[Role], nodes: Iterable[NodeState]) -> set[Role]:
    """`roles`, and those whose workers draw on the same ledgers of the same machines."""
    wanted = set(roles)
    ledgers = {(node.spec.machine.boot_id, node.spec.role.computes) for node in nodes if node.spec.role in wanted}
    rivals = {n.spec.role for n in nodes if (n.spec.machine.boot_id, n.spec.role.computes) in ledgers}
    return wanted | rivals


def _with_addresses(plan: GangPlan, cluster: Cluster) -> GangPlan:
    """The plan with where its nodes are reached."""
    members = {worker.node for worker in plan.workers}
    return plan.model_copy(update={"addresses": {name: cluster.addresses[name] for name in sorted(members)}})


def _placed(job: QueuedJob, cluster: Cluster, seating: Seating) -> Outcome:
    outcome = seating.place(job.roles, job.avoid)
    return outcome if isinstance(outcome, Waiting) else _with_addresses(outcome, cluster)


def _place_per_node(
    job: QueuedJob, cluster: Cluster, allowed: Mapping[str, Allowance], per_node_jobs: dict[str, str]
) -> Outcome:
    """The outcome for a job that runs on every node. Adds its nodes to `per_node_jobs`, which later jobs can't use."""
    plan = spread(cluster.nodes, job.only)
    if isinstance(plan, Waiting):
        return plan
    if waiting := _over_limit(job, plan.world_size, allowed):
        return waiting
    wanted = sorted({worker.node for worker in plan.workers})
    others = {node: per_node_jobs[node] for node in wanted if node in per_node_jobs}
    per_node_jobs |= {node: job.id for node in wanted if node not in per_node_jobs}
    if not others:
        return _with_addresses(plan, cluster)
    node, other = next(iter(others.items()))
    why = "waiting for another job that runs on every node: a node runs one such job at a time"
    return Waiting(f"{why}, and job {other} goes first on node {node}", feasible=False, gist=why)


def _without_workers(job: QueuedJob) -> Waiting | None:
    """One without workers would have an empty gang: it ran on every node once, and its workload is no longer there."""
    if _roles(job):
        return None
    return Waiting("waiting for its workload, which is not installed on the master or could not be loaded", False)


def _over_limit(job: QueuedJob, needed: int, allowances: Mapping[str, Allowance]) -> Waiting | None:
    own = allowances.get(job.owner)
    if own is None or own.used + needed <= own.limit:
        return None
    why = "waiting for other jobs of its owner: token"
    uses = f"{why} {job.owner} uses {own.used} of its {own.limit} slots, and this job needs {needed}"
    has = f"{why} {job.owner} has {own.limit} slots, and this job needs {needed}"
    return Waiting(uses, feasible=False, gist=has)


def _held_back(job: QueuedJob, held: Mapping[Role, Waiting]) -> Waiting | None:
    return next((held[role] for role in sorted(_roles(job)) if role in held), None)


def _roles(job: QueuedJob) -> set[Role]:
    return {role for role, count in job.roles.items() if count}
