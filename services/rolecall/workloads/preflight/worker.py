# pyright: standard
"""The worker of every node: probes all links, joins the gang and measures RPC; rank 0 reports the findings."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch.distributed import rpc

from rolecall.logs import about
from rolecall.network.facts import Facts, collect
from rolecall.network.findings import SpeedBounds, classify_links, compare_facts, not_started, unmeasured
from rolecall.network.links import Prober, probe_links
from rolecall.network.pairs import Pair, Speed
from rolecall.network.survey import CALL_S, Survey
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.runtime.rendezvous import join_gang
from rolecall.spec.errors import Stopped
from rolecall.spec.finding import Level, NodeFinding
from rolecall.workloads.preflight import WORKLOAD, Params
from rolecall.workloads.preflight.remote import BlobExchange, measure, only_unreachable

_LOG = logging.getLogger(__name__)


class _Stalled(Exception):
    """A link stalls, so that leaving in order, over that link, would stall too."""


def run(context: WorkerContext[Params]) -> None:
    """Check the network from this node."""
    exchange = BlobExchange(context, shortened={"links": only_unreachable})
    node = context.launch.worker.node
    own = collect(node, context.launch.gang.addresses[node], torch.__version__)
    exchange.post("facts", own.model_dump_json())
    links = probe_links(Prober.of(context.launch), exchange)
    findings: list[NodeFinding] = []
    if context.rank == 0:
        facts = [Facts.model_validate_json(text) for text in exchange.gather("facts").values()]
        findings = [*compare_facts(facts), *classify_links(links)]
    if any(link.error for link in links):
        context.report.joined()
        findings.append(unmeasured(_nodes(context)))
    else:
        findings += _speeds(context)
    if context.rank == 0:
        _report(context, findings)


def _speeds(context: WorkerContext[Params]) -> list[NodeFinding]:
    """Join the gang and measure; ranks other than 0 only answer."""
    findings: list[NodeFinding] = []
    started = False
    try:
        with join_gang(context.launch, WORKLOAD, context.workdir, context.report):
            started = True
            if context.rank == 0:
                findings += _measure_all(context)
                if any(finding.level is Level.ERROR for finding in findings):
                    raise _Stalled
    except _Stalled:
        _LOG.warning("left without waiting for the others: RPC stalls", extra=about("rpc_stalled"))
    except RuntimeError as error:  # From torch, when the first round of calls takes too long.
        if started:
            raise
        _LOG.warning("RPC does not start: %s", error, extra=about("rpc_not_started"))
        context.report.joined()
        findings.append(not_started(_nodes(context), str(error).splitlines()[0]))
    return findings


def _measure_all(context: WorkerContext[Params]) -> Iterator[NodeFinding]:
    def meter(pairs: Sequence[Pair], budget_s: float) -> list[Speed | str]:
        if context.stop_requested():
            raise Stopped("the measurements were stopped")
        # The inner call must time out first: its error names the pair that stalls.
        patience_s = budget_s + 2 * CALL_S
        calls = [
            rpc.rpc_async(names[one], measure, (names[other], budget_s), timeout=patience_s) for one, other in pairs
        ]
        return [_awaited(call) for call in calls]

    names = {worker.node: worker_name(worker.role, worker.role_rank) for worker in context.launch.gang.workers}
    params = context.params
    bounds = SpeedBounds(params.slow_ping_ms, params.slow_mb_per_s)
    yield from Survey(list(names), params.measure_s, bounds, meter, context.report.event).findings()


def _awaited(call: "torch.futures.Future[Speed | str]") -> Speed | str:
    try:
        return call.wait()
    except RuntimeError as error:  # Not the measured call, but ours to the worker that measures.
        return str(error).splitlines()[0]


def _report(context: WorkerContext[Params], findings: Sequence[NodeFinding]) -> None:
    levels = Counter(finding.level for finding in findings)
    count = context.world_size
    metrics = {
        "nodes": count,
        "pairs": count * (count - 1) // 2,
        "errors": levels[Level.ERROR],
        "warnings": levels[Level.WARNING],
    }
    context.report.write("result", metrics=metrics, findings=tuple(findings))


def _nodes(context: WorkerContext[Params]) -> list[str]:
    return [worker.node for worker in context.launch.gang.workers]
