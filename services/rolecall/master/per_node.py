"""Where a gang goes that runs on every node: a worker on each node, beside whatever runs there. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence

from rolecall.master.placement import Waiting
from rolecall.spec.node import NodeSpec, NodeState
from rolecall.spec.plan import GangPlan, WorkerPlan
from rolecall.spec.role import RANK_ORDER


def spread(nodes: Sequence[NodeState], only: Collection[str] = ()) -> GangPlan | Waiting:
    """A worker on each node that is alive and not draining, or on each of `only`; or the reason why not."""
    open_nodes = {node.spec.name: node.spec for node in nodes if node.alive and not node.draining}
    missing = sorted(set(only) - set(open_nodes))
    if missing:
        return Waiting(f"waiting for nodes that are lost, draining or not registered: {', '.join(missing)}", False)
    chosen = [spec for name, spec in open_nodes.items() if not only or name in only]
    if not chosen:
        return Waiting("waiting for nodes: none is alive; start one", feasible=False)
    return GangPlan(workers=_workers(chosen))


def _workers(specs: Sequence[NodeSpec]) -> tuple[WorkerPlan, ...]:
    ordered = sorted(specs, key=lambda spec: (RANK_ORDER.index(spec.role), spec.name))
    counts: Counter[str] = Counter()
    workers: list[WorkerPlan] = []
    for rank, spec in enumerate(ordered):
        number = counts[spec.role]
        workers.append(WorkerPlan(rank=rank, role=spec.role, role_rank=number, node=spec.name, threads=1))
        counts[spec.role] += 1
    return tuple(workers)
