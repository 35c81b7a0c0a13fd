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
from rolecall.workloads.preflight.board import MasterBoard, cut_alone
from rolecall.workloads.preflight.facts import Facts, collect, compare
from rolecall.workloads.preflight.judging import judge_ways, not_started, unmeasured
from rolecall.workloads.preflight.measuring import CALL_S, Speed, measure
from rolecall.workloads.preflight.pairs import Pair
from rolecall.workloads.preflight.survey import Survey


class _Stalled(Exception):
    """A way stalls, so that parting in order, over that way, would too."""


def run(context: WorkerContext[Params]) -> None:
    """Examine the cluster from this node."""
    board = MasterBoard(context, shortened={"ways": cut_alone})
    board.post("facts", collect(context).model_dump_json())
    ways = explore(Explorer.of(context.launch), board)
    findings = [*compare(_facts(board)), *judge_ways(ways)] if context.rank == 0 else []
    if any(way.error for way in ways):
        context.report.joined()
        findings.append(unmeasured(_nodes(context)))
    else:
        findings += _speeds(context)
    if context.rank == 0:
        _tell(context, findings)


def _facts(board: MasterBoard) -> list[Facts]:
    return [Facts.model_validate_json(text) for text in board.gather("facts").values()]


def _speeds(context: WorkerContext[Params]) -> list[NodeFinding]:
    """Join the gang and measure; at other ranks than 0, be measured and know nothing of it."""
    findings: list[NodeFinding] = []
    started = False
    try:
        with met(context.launch, WORKLOAD, context.workdir, context.report):
            started = True
            if context.rank == 0:
                findings += _measure_all(context)
                if any(finding.level is Level.ERROR for finding in findings):
                    raise _Stalled
    except _Stalled:
        logging.warning("left without a word to the others: RPC stalls")
    except RuntimeError as error:  # So torch says that the first round of calls did not come about in time.
        if started:
            raise
        logging.warning("RPC does not start: %s", error)
        context.report.joined()
        findings.append(not_started(_nodes(context), str(error).splitlines()[0]))
    return findings


def _measure_all(context: WorkerContext[Params]) -> Iterator[NodeFinding]:
    def meter(pairs: Sequence[Pair], budget_s: float) -> list[Speed | str]:
        if context.stop_requested():
            raise Stopped("the examination is broken off")
        calls = [_begin(names[one], names[other], budget_s) for one, other in pairs]
        return [_awaited(call) for call in calls]

    names = {worker.node: _name(worker) for worker in context.launch.gang.workers}
    yield from Survey(list(names), context.params, meter, context.report.event).findings()


def _begin(one: str, other: str, budget_s: float) -> "torch.futures.Future[Speed | str]":
    # The call that stalls inside must be over first, or nobody would say which one it was.
    patience_s = budget_s + 2 * CALL_S
    return rpc.rpc_async(one, measure, (other, budget_s), timeout=patience_s)


def _awaited(call: "torch.futures.Future[Speed | str]") -> Speed | str:
    try:
        return call.wait()
    except RuntimeError as error:  # Not the measured call but ours, to the worker that measures.
        return str(error).splitlines()[0]


def _tell(context: WorkerContext[Params], findings: Sequence[NodeFinding]) -> None:
    levels = Counter(finding.level for finding in findings)
    count = context.world_size
    metrics = {
        "nodes": count,
        "pairs": count * (count - 1) // 2,
        "errors": levels[Level.ERROR],
        "warnings": levels[Level.WARNING],
    }
    context.report.result(metrics, findings)


def _nodes(context: WorkerContext[Params]) -> list[str]:
    return [worker.node for worker in context.launch.gang.workers]


def _name(worker: WorkerPlan) -> str:
    return worker_name(worker.role, worker.role_rank)
