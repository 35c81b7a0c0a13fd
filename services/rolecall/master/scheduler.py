"""The scheduling of the queue: order, backfill, limits of owners, and per-node jobs. Pure.

A search for seats takes milliseconds, and a user can queue any number of gangs that each need another one. So a pass
has a budget for searches, which owners share equally. It leaves the other jobs undecided, and the next pass decides
them before the other jobs of the same priority.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from rolecall.master.placement import Cluster, Outcome, Seating, WaitCause, Waiting, needs_of
from rolecall.master.seats import Counts, Need, Pool, pools_of, slots_taken
from rolecall.spec.node import NodeSpec, NodeState
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.resources import Resources
from rolecall.spec.role import RANK_ORDER, Role

_BUDGET = 10_000
"""The costs of a pass's searches: about 0.2 s. A search costs 1 for each worker of the gang and each node."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """The properties of a queued job that scheduling needs."""

    id: str
    roles: Mapping[Role, int]
    priority: int
    created_at: datetime
    queued_at: datetime
    """The time at which it last entered the queue."""
    per_node: bool = False
    """True if it runs on each node, or on each of `only`, without slots."""
    only: tuple[str, ...] = ()
    owner: str = ""
    resources: Mapping[Role, Resources] = field(default_factory=dict[Role, Resources])
    avoid: tuple[str, ...] = ()
    """Nodes to use only if it fits nowhere else."""
    needs: Counts = field(init=False)
    """The slots that its workers need."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", needs_of(self.roles, self.resources))

    @property
    def order(self) -> tuple[int, datetime, str]:
        """The job's position in the queue: by priority, oldest first."""
        return -self.priority, self.created_at, self.id


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limit for the slots of one owner's running workers, and how many they take, see `slots_of`."""

    limit: int
    used: int


class PerNodeJob(NamedTuple):
    """A job that runs on each node."""

    id: str
    owner: str


@dataclass(frozen=True, slots=True)
class Earlier:
    """The results of the previous pass that this one uses."""

    waiting: Mapping[str, Waiting] = field(default_factory=dict[str, Waiting])
    """The outcomes that still hold, because all arguments are the same, except for new jobs at the end of the queue."""
    undecided: Collection[str] = frozenset()
    """The jobs that it has not decided."""

    @property
    def lasting(self) -> "Earlier":
        """Without the outcomes of jobs held back for an undecided one, which may turn out to hold back none."""
        if not self.undecided:
            return self
        kept = {job: why for job, why in self.waiting.items() if why.cause is not WaitCause.EARLIER_JOB}
        return Earlier(kept, self.undecided)


_NOTHING_EARLIER = Earlier()

Demand = tuple[Role, bool]
"""A role, and True for its workers on GPUs, False for those on CPU shares."""


def schedule(  # noqa: PLR0917 - all that the queue depends on
    queue: Iterable[QueuedJob],
    nodes: Cluster | Sequence[NodeState],
    taken: Sequence[WorkerPlan],
    now: datetime,
    backfill_window: timedelta,
    allowances: Mapping[str, Allowance] = MappingProxyType({}),
    per_node_jobs: Mapping[str, PerNodeJob] = MappingProxyType({}),
    earlier: Earlier = _NOTHING_EARLIER,
) -> dict[str, Outcome]:
    """A plan, or a reason to wait, for every queued job in the queue's order, except for undecided ones.

    For the same nodes, pass the same `Cluster`, which caches what it has computed.

    Jobs that fit run before one that does not (backfill). When a job that would fit into the empty cluster has waited
    longer than `backfill_window`, later jobs don't get slots that its workers can use, or slots of the same machines'
    cores or GPUs, so that it doesn't starve. A job that can never fit blocks no other job.
    `allowances` has the owners whose slots are limited. A job that waits for its owner's other jobs blocks none.
    `per_node_jobs` maps each node with a worker of a per-node job to that job. Per-node jobs take no slots, so they
    neither block other jobs nor wait for them, but a node runs only one of them at a time.
    """
    cluster = nodes if isinstance(nodes, Cluster) else Cluster(nodes)
    seating, allowed, per_node_jobs = cluster.seating(taken), dict(allowances), dict(per_node_jobs)
    jobs = sorted(queue, key=lambda job: job.order)
    turns = _turns(jobs, cluster, seating, earlier)
    held: dict[Demand, tuple[QueuedJob, Waiting]] = {}  # what an earlier job reserves, and its own reason
    outcomes: dict[str, Outcome] = {}
    for job in jobs:
        known = earlier.waiting.get(job.id)
        outcome = (
            _place_per_node(job, cluster, allowed, per_node_jobs)
            if job.per_node
            else known
            or _without_workers(job)
            or _over_limit(job, sum(job.roles.values()), allowed)
            or next((_held_back(job, *held[one]) for one in sorted(_demands(job, cluster)) if one in held), None)
        )
        if outcome is None and (job.id in turns or not seating.needs_search(job.needs, job.avoid)):
            outcome = _placed(job, cluster, seating, allowed)
        if outcome is not None:
            outcomes[job.id] = outcome
        if isinstance(outcome, GangPlan):
            if not job.per_node:
                seating = seating.after(outcome.workers)
            if (own := allowed.get(job.owner)) is not None:
                allowed[job.owner] = replace(own, used=own.used + slots_of(outcome.workers, cluster.specs))
            continue
        waiting = outcome or Waiting(
            "waiting for its turn to be placed", bool(cluster.fits_alone(job.needs)), cause=WaitCause.TURN
        )
        if waiting.feasible and now - job.queued_at > backfill_window:
            held = dict.fromkeys(contended(_demands(job, cluster), cluster.nodes), (job, waiting)) | held
    return outcomes


def _held_back(job: QueuedJob, earlier: QueuedJob, its_reason: Waiting) -> Waiting:
    """The reason of a job that waits for an earlier one. Its owner may not be allowed to see other owners' jobs."""
    if job.owner != earlier.owner:
        return Waiting("held back for a job of another token, which goes first", False, cause=WaitCause.EARLIER_JOB)
    prefix = f"held back for job {earlier.id}, which goes first and is "
    return Waiting(prefix + its_reason.reason, False, prefix + its_reason.lasting, WaitCause.EARLIER_JOB)


def _turns(jobs: Sequence[QueuedJob], cluster: Cluster, seating: Seating, earlier: Earlier) -> set[str]:
    """The jobs for which the pass can search seats: for each owner, those that its share of the budget pays for, but at
    least one. One search is for all of the owner's jobs of a shape."""
    unknown = [
        job
        for job in jobs
        if not job.per_node and job.id not in earlier.waiting and seating.needs_search(job.needs, job.avoid)
    ]
    share = _BUDGET // max(1, len({job.owner for job in unknown}))
    costs: Counter[str] = Counter()
    searches: set[tuple[str, frozenset[tuple[Need, int]], tuple[str, ...]]] = set()
    turns: set[str] = set()
    for job in sorted(unknown, key=lambda job: (-job.priority, job.id not in earlier.undecided)):
        search = job.owner, frozenset(job.needs.items()), job.avoid
        cost = len(cluster.nodes) + sum(job.needs.values())
        if search not in searches and (not costs[job.owner] or costs[job.owner] + cost <= share):
            costs[job.owner] += cost
            searches.add(search)
        if search in searches:
            turns.add(job.id)
    return turns


def slots_of(workers: Iterable[WorkerPlan], specs: Mapping[str, NodeSpec]) -> int:
    """The slots of workers in their owner's limit: one for each, or the CPU shares of its threads if these are more."""
    return sum(slots_taken(specs[one.node], one) if one.node in specs else 1 for one in workers)


def _demands(job: QueuedJob, cluster: Cluster) -> set[Demand]:
    return {(need.role, on_gpu) for need in job.needs for on_gpu in cluster.devices(need)}


def contended(demands: Collection[Demand], nodes: Iterable[NodeState]) -> set[Demand]:
    """`demands`, and those that can use the same slots, or the same ledgers or GPUs of the same machines."""
    uses = [((node.spec.role, on_gpu), _uses(node.spec, on_gpu=on_gpu)) for node in nodes for on_gpu in (False, True)]
    wanted = frozenset[Pool]().union(*(pools for demand, pools in uses if demand in demands))
    return {*demands, *(demand for demand, pools in uses if not wanted.isdisjoint(pools))}


def _uses(spec: NodeSpec, *, on_gpu: bool) -> set[Pool]:
    """The ledger or GPUs of a node, and its slots if they are too few for workers on both."""
    pools = pools_of(spec, on_gpu=on_gpu)
    few = spec.slots < spec.machine.capacity(spec.role)
    return {*pools, Pool(spec.name, "slots")} if few and pools else set(pools)


def _with_addresses(plan: GangPlan, cluster: Cluster) -> GangPlan:
    """The plan with the addresses of its nodes."""
    members = {worker.node for worker in plan.workers}
    return plan.model_copy(update={"addresses": {name: cluster.specs[name].address for name in sorted(members)}})


def _placed(job: QueuedJob, cluster: Cluster, seating: Seating, allowances: Mapping[str, Allowance]) -> Outcome:
    outcome = seating.place(job.needs, job.avoid)
    if isinstance(outcome, Waiting):
        return outcome
    # Only a plan says how many CPU shares the threads of each worker take.
    return _over_limit(job, slots_of(outcome.workers, cluster.specs), allowances) or _with_addresses(outcome, cluster)


def one_worker_per_node(nodes: Sequence[NodeState], only: Collection[str] = ()) -> GangPlan | Waiting:
    """The plan of a per-node job on all nodes that are alive and not draining, or on `only`; or a reason to wait."""
    available = {node.spec.name: node.spec for node in nodes if node.alive and not node.draining}
    missing = sorted(set(only) - set(available))
    if missing:
        return Waiting(
            f"waiting for nodes that are lost, draining or not registered: {', '.join(missing)}",
            False,
            cause=WaitCause.NODES,
        )
    chosen = [spec for name, spec in available.items() if not only or name in only]
    if not chosen:
        return Waiting("waiting for nodes: none is alive; start one", feasible=False, cause=WaitCause.NODES)
    counts: Counter[str] = Counter()
    workers: list[WorkerPlan] = []
    for rank, spec in enumerate(sorted(chosen, key=lambda spec: (RANK_ORDER.index(spec.role), spec.name))):
        number = counts[spec.role]
        workers.append(WorkerPlan(rank=rank, role=spec.role, role_rank=number, node=spec.name, threads=1))
        counts[spec.role] += 1
    return GangPlan(workers=tuple(workers))


def _place_per_node(
    job: QueuedJob, cluster: Cluster, allowed: Mapping[str, Allowance], per_node_jobs: dict[str, PerNodeJob]
) -> Outcome:
    """The outcome for a job that runs on every node. Adds its nodes to `per_node_jobs`, which later jobs can't use."""
    plan = one_worker_per_node(cluster.nodes, job.only)
    if isinstance(plan, Waiting):
        return plan
    if waiting := _over_limit(job, plan.world_size, allowed):
        return waiting
    wanted = sorted({worker.node for worker in plan.workers})
    others = {node: per_node_jobs[node] for node in wanted if node in per_node_jobs}
    per_node_jobs |= {node: PerNodeJob(job.id, job.owner) for node in wanted if node not in per_node_jobs}
    if not others:
        return _with_addresses(plan, cluster)
    node, other = next(iter(others.items()))
    why = "waiting for another job that runs on every node: a node runs one such job at a time"
    first = f"job {other.id}" if other.owner == job.owner else "a job of another token"
    return Waiting(f"{why}, and {first} goes first on node {node}", False, why, WaitCause.EARLIER_JOB)


def _without_workers(job: QueuedJob) -> Waiting | None:
    """The reason for a job without roles. It was a per-node job, but its workload is no longer installed."""
    if any(job.roles.values()):
        return None
    why = "waiting for its workload, which is not installed on the master or could not be loaded"
    return Waiting(why, feasible=False, cause=WaitCause.WORKLOAD)


def _over_limit(job: QueuedJob, needed: int, allowances: Mapping[str, Allowance]) -> Waiting | None:
    own = allowances.get(job.owner)
    if own is None or own.used + needed <= own.limit:
        return None
    why = "waiting for other jobs of its owner: token"
    uses = f"{why} {job.owner} uses {own.used} of its {own.limit} slots, and this job needs {needed}"
    has = f"{why} {job.owner} has {own.limit} slots, and this job needs {needed}"
    return Waiting(uses, feasible=False, gist=has, cause=WaitCause.LIMIT)
