# pyright: standard
"""Findings are reported even if the gang's RPC does not start, or stalls."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch.distributed import rpc

from rolecall.network.facts import Facts
from rolecall.runtime import rendezvous
from rolecall.runtime.context import WorkerContext
from rolecall.spec.finding import Level, NodeFinding
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp import WORKLOAD as TRAINING
from rolecall.workloads.preflight import WORKLOAD, Params, worker
from rolecall.workloads.preflight.remote import Messages

NODES = ("a", "b")
EXAMPLE = json.loads((files(TRAINING.package) / "example.json").read_text())["params"]


class Reports:
    """The reports of a worker."""

    def __init__(self) -> None:
        self.findings: list[NodeFinding] = []
        self.metrics: dict[str, float] = {}
        self.times_joined = 0

    def joined(self) -> None:
        self.times_joined += 1

    def event(self, message: str) -> None: ...

    def write(self, kind: str, *, metrics: dict[str, float], findings: tuple[NodeFinding, ...]) -> None:
        assert kind == "result"
        self.findings, self.metrics = list(findings), metrics


class Exchange:
    """All nodes say the same."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def post(self, topic: str, text: str) -> None: ...

    def gather(self, topic: str) -> Messages:
        facts = {"address": "127.0.0.1", "interface": "lo", "host": "h", "resolved": None, "python": "3", "torch": "2"}
        return {node: Facts.model_validate(facts | {"node": node}).model_dump_json() for node in NODES}


def examine(monkeypatch: pytest.MonkeyPatch, rank: int, join_gang: Any) -> Reports:
    """Play the worker of that rank, where the links are open and the gang meets like this."""
    workers = [SimpleNamespace(node=node, role=Role.TRAINER, role_rank=n, rank=n) for n, node in enumerate(NODES)]
    gang = SimpleNamespace(workers=workers, addresses=dict.fromkeys(NODES, "127.0.0.1"))
    launch = SimpleNamespace(worker=workers[rank], gang=gang, job="j", attempt=1, secret="s")
    report = Reports()
    own = {"launch": launch, "rank": rank, "report": report, "workdir": None, "world_size": 2, "params": Params()}
    context = SimpleNamespace(stop_requested=lambda: None, **own)
    monkeypatch.setattr(worker, "BlobExchange", Exchange)
    monkeypatch.setattr(worker, "probe_links", lambda *_: [])
    monkeypatch.setattr(worker, "join_gang", join_gang)
    worker.run(cast(WorkerContext, context))
    return report


@contextmanager
def never(*_: Any) -> Generator[None]:
    raise RuntimeError("Followers ['trainer-1'] timed out in _all_gather after 30.00 seconds.\nMore of it")
    yield


@contextmanager
def at_once(_launch: Any, _workload: Any, _workdir: Any, report: Reports) -> Generator[None]:
    report.joined()
    yield


def test_rpc_that_does_not_start_is_one_of_the_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, 0, never)
    (error,) = (finding for finding in report.findings if finding.level is Level.ERROR)
    assert (error.check, error.nodes) == ("rpc", NODES)
    assert error.message.endswith("timed out in _all_gather after 30.00 seconds.")
    assert {"interface", "torch"} <= {finding.check for finding in report.findings}
    assert report.metrics["errors"] == 1
    assert report.times_joined == 1


def test_the_others_leave_as_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    report = examine(monkeypatch, 1, never)
    assert (report.findings, report.metrics) == ([], {})


def test_an_error_in_the_examination_itself_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(worker, "_measure_all", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        examine(monkeypatch, 0, at_once)


def test_who_has_met_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_measure_all", lambda _: iter(()))
    assert examine(monkeypatch, 0, at_once).times_joined == 1


@pytest.mark.parametrize(("workload", "params", "timeout_s"), [(WORKLOAD, {}, 30.0), (TRAINING, EXAMPLE, 600.0)])
def test_who_examines_does_not_wait_for_rpc_as_long_as_who_trains(
    monkeypatch: pytest.MonkeyPatch, workload: Any, params: dict[str, Any], timeout_s: float
) -> None:
    given: list[rpc.TensorPipeRpcBackendOptions] = []
    monkeypatch.setattr(rpc, "init_rpc", lambda *_, rpc_backend_options, **__: given.append(rpc_backend_options))
    plan = SimpleNamespace(gpu=None, role=Role.TRAINER, role_rank=0, rank=0)
    gang = SimpleNamespace(world_size=1, workers=[plan], role_counts={})
    launch = SimpleNamespace(worker=plan, gang=gang, master_addr="127.0.0.1", params=params)
    rendezvous._join_rpc(cast(Any, launch), workload, cast(Any, None))
    assert given[0].rpc_timeout == timeout_s
