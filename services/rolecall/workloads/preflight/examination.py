"""What every node does: look at the ways, join the gang if all are open, be measured; rank 0 tells what was found."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch.distributed import rpc

from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.runtime.reach import Explorer, explore
from rolecall.runtime.rendezvous import met
from rolecall.spec.errors import Stopped
from rolecall.spec.finding import Level
from rolecall.spec.plan import WorkerPlan
from rolecall.spec.preflight import NodeFinding
from rolecall.workloads.preflight import WORKLOAD, Params
from rolecall.workloads.preflight.board import MasterBoard
from rolecall.workloads.preflight.facts import Facts, collect, compare
from rolecall.workloads.preflight.judging import judge_speed, judge_ways, stalled, unmeasured
from rolecall.workloads.preflight.measuring import CALL_S, Speed, measure
from rolecall.workloads.preflight.pairs import rounds


class _Stalled(Exception):
    """A way stalls, so that parting in order, over that way, would too."""


def run(context: WorkerContext) -> None:
    """Examine the cluster from this node."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # The board asks many times, and often in vain.
    board = MasterBoard(context)
    board.post("facts", collect(context).model_dump_json())
    ways = explore(Explorer.of(context.launch), board)
    facts = [Facts.model_validate_json(text) for text in board.gather("facts").values()]
    findings = [*compare(facts), *judge_ways(ways)]
    if any(way.error for way in ways):
        context.report.joined()
        findings.append(unmeasured([fact.node for fact in facts]))
    else:
        findings += _speeds(context)
    if context.rank == 0:
        _tell(context, findings)


def _speeds(context: WorkerContext) -> list[NodeFinding]:
    """Join the gang and measure; at other ranks than 0, be measured and know nothing of it."""
    findings: list[NodeFinding] = []
    try:
        with met(context.launch, WORKLOAD, context.workdir, context.report):
            context.report.joined()
            if context.rank == 0:
                findings += _measure_all(context)
                if any(finding.level is Level.ERROR for finding in findings):
                    raise _Stalled
    except _Stalled:
        logging.warning("left without a word to the others: RPC stalls")
    return findings


def _measure_all(context: WorkerContext) -> Iterator[NodeFinding]:
    """Round by round, the pairs of a round at the same time."""
    assert isinstance(context.params, Params)
    workers = context.launch.gang.workers
    plan = rounds(len(workers))
    for number, pairs in enumerate(plan, start=1):
        if context.stop_requested():
            raise Stopped("the examination is broken off")
        budget_s = context.params.measure_s / len(plan)
        calls = [((workers[a], workers[b]), _begin(workers[a], workers[b], budget_s)) for a, b in pairs]
        for (one, other), call in calls:
            pair, speed = (one.node, other.node), _awaited(call)
            yield from judge_speed(pair, speed, context.params) if isinstance(speed, Speed) else [stalled(pair, speed)]
        context.report.event(f"measured {number} of {len(plan)} rounds of pairs")


def _begin(one: WorkerPlan, other: WorkerPlan, budget_s: float) -> "torch.futures.Future[Speed | str]":
    # The call that stalls inside must be over first, or nobody would say which one it was.
    patience_s = budget_s + 2 * CALL_S
    return rpc.rpc_async(_name(one), measure, (_name(other), budget_s), timeout=patience_s)


def _awaited(call: "torch.futures.Future[Speed | str]") -> Speed | str:
    try:
        return call.wait()
    except RuntimeError as error:  # Not the measured call but ours, to the worker that measures.
        return str(error).splitlines()[0]


def _tell(context: WorkerContext, findings: Sequence[NodeFinding]) -> None:
    levels = Counter(finding.level for finding in findings)
    count = context.world_size
    context.report.result(
        findings=findings,
        nodes=count,
        pairs=count * (count - 1) // 2,
        errors=levels[Level.ERROR],
        warnings=levels[Level.WARNING],
    )


def _name(worker: WorkerPlan) -> str:
    return worker_name(worker.role, worker.role_rank)
