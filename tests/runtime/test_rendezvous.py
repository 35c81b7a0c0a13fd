# pyright: standard, reportPrivateImportUsage=false
"""The rendezvous and shutdown of a gang, with a real process for each worker and real sockets."""

import json
import logging
import os
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.ports import free_port
from torch.distributed import rpc

from rolecall.runtime import rendezvous
from rolecall.runtime.backends import HOST
from rolecall.runtime.rendezvous import join_before_role
from rolecall.runtime.reporter import Reporter
from rolecall.spec.errors import PeerLost, RendezvousTimeout, RolecallError, Stopped, UnreachablePeer
from rolecall.spec.plan import GangPlan, WorkerLaunch, WorkerPlan
from rolecall.spec.role import Role
from rolecall.spec.shared_memory import remove_files
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import PerNodeParams, RoleCount, Workload
from rolecall.testing.gang import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ANSWER_S = 60


@dataclass
class Plan:
    """A gang of trainers and observers, and what differs from the service."""

    roles: tuple[Role, ...] = (Role.TRAINER, Role.TRAINER)
    addresses: tuple[str, ...] = ("127.0.0.1",)
    """The nodes' addresses, to which the workers are given out in turn."""
    gpus: tuple[str, ...] = ()
    """The workers' GPUs. Then there is no RPC, which would look for them."""
    per_node: bool = False
    expendable: frozenset[Role] = frozenset()
    seconds: dict[str, float] = field(default_factory=dict)
    """Timeouts of the module that are shorter than in the service."""

    @property
    def workload(self) -> Workload[PerNodeParams]:
        return Workload(
            name="w", summary="", package="", params=PerNodeParams, roles={role: RoleCount(1) for role in self.roles},
            rpc=not self.gpus, process_group=(Role.TRAINER,), expendable=self.expendable, per_node=self.per_node,
        )  # fmt: skip

    def launch(self, rank: int) -> WorkerLaunch:
        nodes = [f"n{one % len(self.addresses)}" for one in range(len(self.roles))]
        workers = tuple(
            WorkerPlan(
                rank=one,
                role=role,
                role_rank=self.roles[:one].count(role),
                node=nodes[one],
                threads=1,
                gpu=self.gpus[one] if self.gpus else None,
            )
            for one, role in enumerate(self.roles)
        )
        addresses = {f"n{number}": address for number, address in enumerate(self.addresses)}
        return WorkerLaunch(
            job="j", attempt=1, workload="w", params={}, worker=workers[rank], master_addr=self.addresses[0],
            gang=GangPlan(workers=workers, addresses=addresses), secret="s",
        )  # fmt: skip


def play(plan: Plan, rank: int, folder: Path, test: Connection) -> None:
    """One worker: join, say so with what it sees, and leave in the way that the test asks for."""
    os.environ.update(TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    for name, seconds in plan.seconds.items():
        setattr(rendezvous, name, seconds)
    workdir = Workdir(folder / str(rank))
    events = list[tuple[str, str]]()
    log = logging.getLogger("rolecall.runtime.rendezvous")
    log.setLevel(logging.INFO)
    log.addFilter(lambda record: events.append((record.__dict__["event"], record.getMessage())) or True)
    try:
        with closing(Reporter(workdir.progress)) as report:
            with join_before_role(plan.launch(rank), plan.workload, workdir, report):
                test.send(seen(plan, events))
                if test.recv() == "stop":
                    raise Stopped("asked to")
            test.send("left")
    except RolecallError as error:
        test.send(error)


def seen(plan: Plan, events: list[tuple[str, str]]) -> dict[str, Any]:
    if plan.per_node:
        return {"initialized": dist.is_initialized()}
    total = torch.ones(1)
    if dist.is_initialized():
        dist.all_reduce(total)
    if plan.gpus:
        return {"backend": dist.get_backend(), "sum": total.item(), "events": events}
    return {
        "names": sorted(info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos()),
        "answer": rpc.rpc_sync("trainer-1", torch.add, (torch.ones(1), 1), timeout=20).item(),
        "sum": total.item(),
        "group": dist.get_world_size() if dist.is_initialized() else 0,
        "environment": {name: os.environ[name] for name in ("ROLE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "ROLE_RANK")},
    }


class Gang:
    """The workers, as processes; the test stands in for master and nodes, which pass on rank 0's port."""

    def __init__(self, plan: Plan, folder: Path, ranks: list[int]) -> None:
        self.folder = folder
        self.ends: dict[int, Connection] = {}
        self.processes: dict[int, Any] = {}
        for rank in ranks:
            (folder / str(rank)).mkdir()
            self.ends[rank], theirs = processes.Pipe()
            self.processes[rank] = processes.Process(target=play, args=(plan, rank, folder, theirs), daemon=True)
            self.processes[rank].start()

    def lines(self, rank: int) -> list[dict[str, Any]]:
        path = Workdir(self.folder / str(rank)).progress
        written = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in written if line.endswith("\n")]

    def publish_port(self, port: int | None = None) -> None:
        deadline = time.monotonic() + ANSWER_S
        while port is None:
            assert time.monotonic() < deadline
            port = next((line["port"] for line in self.lines(0) if line["kind"] == "rendezvous"), None)
            time.sleep(0.01)
        for rank in self.processes:
            partial = self.folder / f"port-{rank}"
            partial.write_text(str(port))
            partial.rename(Workdir(self.folder / str(rank)).rendezvous)

    def meet(self) -> list[Any]:
        """Let the workers join; what each of them has seen."""
        self.publish_port()
        return [self.receive(rank) for rank in self.processes]

    def receive(self, rank: int) -> Any:
        assert self.ends[rank].poll(ANSWER_S), f"rank {rank} says nothing"
        return self.ends[rank].recv()


@contextmanager
def gang(plan: Plan, folder: Path, *, ranks: list[int] | None = None) -> Generator[Gang]:
    workers = Gang(plan, folder, [*range(len(plan.roles))] if ranks is None else ranks)
    try:
        yield workers
    finally:
        for rank, process in workers.processes.items():
            process.kill()
            process.join()
            remove_files(plan.launch(rank))


def test_a_gang_meets_by_rpc_and_as_a_process_group(tmp_path: Path) -> None:
    plan = Plan((Role.TRAINER, Role.TRAINER, Role.OBSERVER))
    with gang(plan, tmp_path) as workers:
        found = workers.meet()
        assert all(one["names"] == ["observer-0", "trainer-0", "trainer-1"] and one["answer"] == 2 for one in found)
        assert [(one["group"], one["sum"]) for one in found] == [(2, 2), (2, 2), (0, 1)], "observers are not in it"
        assert found[2]["environment"] == {
            "ROLE": "observer", "RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "2", "ROLE_RANK": "0",
        }  # fmt: skip
        for rank in range(3):
            workers.ends[rank].send("leave")
        assert [workers.receive(rank) for rank in range(3)] == ["left"] * 3
    assert [[line["kind"] for line in workers.lines(rank)] for rank in (0, 1)] == [["rendezvous", "joined"], ["joined"]]


def test_trainers_that_share_a_gpu_meet_without_nccl(tmp_path: Path) -> None:
    with gang(Plan(gpus=("GPU-a", "GPU-a")), tmp_path) as workers:
        first, second = workers.meet()
    assert [(one["backend"], one["sum"]) for one in (first, second)] == [(HOST, 2)] * 2
    text = "ranks 0, 1 share GPU GPU-a: process groups with several of them use Gloo instead of NCCL"
    assert first["events"] == [("gpu_shared", text)]
    assert second["events"] == [], "rank 0 logs for the gang"


def test_rank_0_which_has_the_store_leaves_last(tmp_path: Path) -> None:
    """Also where an expendable worker may be lost, for which nobody waits."""
    plan = Plan((Role.TRAINER, Role.TRAINER, Role.OBSERVER), expendable=frozenset({Role.OBSERVER}))
    with gang(plan, tmp_path) as workers:
        workers.meet()
        workers.processes[2].kill()
        workers.ends[0].send("leave")
        assert not workers.ends[0].poll(0.5), "rank 1 still needs the store"
        workers.ends[1].send("leave")
        assert [workers.receive(rank) for rank in (1, 0)] == ["left", "left"]


def test_workers_that_are_asked_to_stop_leave_in_order_and_say_so(tmp_path: Path) -> None:
    with gang(Plan(), tmp_path) as workers:
        workers.meet()
        for rank in range(2):
            workers.ends[rank].send("stop")
        assert [type(workers.receive(rank)) for rank in range(2)] == [Stopped, Stopped]


def test_a_worker_whose_role_only_serves_calls_stops_with_its_gang(tmp_path: Path) -> None:
    with gang(Plan((Role.PARAMETER_SERVER, Role.TRAINER, Role.TRAINER)), tmp_path) as workers:
        workers.meet()
        for rank, order in enumerate(("leave", "stop", "stop")):
            workers.ends[rank].send(order)
        assert [type(workers.receive(rank)) for rank in range(3)] == [Stopped] * 3


def test_an_expendable_worker_that_stops_does_not_stop_its_gang(tmp_path: Path) -> None:
    plan = Plan((Role.TRAINER, Role.TRAINER, Role.OBSERVER), expendable=frozenset({Role.OBSERVER}))
    with gang(plan, tmp_path) as workers:
        workers.meet()
        for rank, order, end in ((2, "stop", Stopped), (1, "leave", "left"), (0, "leave", "left")):
            workers.ends[rank].send(order)
            found = workers.receive(rank)
            assert end in {found, type(found)}, rank


@pytest.mark.parametrize(("order", "end"), [("leave", "left"), ("stop", Stopped)])
def test_a_worker_that_is_late_leaves_without_the_store(tmp_path: Path, order: str, end: object) -> None:
    plan = Plan(gpus=("GPU-a", "GPU-a"), seconds={"_LEAVE_TIMEOUT_S": 0.2})
    with gang(plan, tmp_path) as workers:
        workers.meet()
        workers.ends[0].send("leave")
        assert workers.receive(0) == "left"
        workers.processes[0].join(ANSWER_S)
        workers.ends[1].send(order)
        found = workers.receive(1)
        assert end in {found, type(found)}


def test_a_worker_that_does_not_arrive_is_named(tmp_path: Path) -> None:
    plan = Plan((Role.TRAINER, Role.OBSERVER, Role.OBSERVER), seconds={"_JOIN_TIMEOUT_S": 2.0})
    with gang(plan, tmp_path, ranks=[0, 1]) as workers:
        workers.publish_port()
        error = workers.receive(0)
    assert isinstance(error, RendezvousTimeout)
    assert str(error) == "not arrived within 2 s: observer-1 on node n0"


def test_a_port_that_is_never_published_ends_the_wait(tmp_path: Path) -> None:
    with gang(Plan(seconds={"_JOIN_TIMEOUT_S": 1.0}), tmp_path, ranks=[1]) as workers:
        error = workers.receive(1)
    assert isinstance(error, RendezvousTimeout)
    assert "rank 0 did not publish the gang's port within 1 s" in str(error)


def test_a_rank_0_that_is_gone_is_noticed_before_the_store_would_wait_for_it(tmp_path: Path) -> None:
    port = free_port()
    with gang(Plan(addresses=("127.0.0.1", "127.0.0.2")), tmp_path, ranks=[1]) as workers:
        workers.publish_port(port)
        error = workers.receive(1)
    assert isinstance(error, PeerLost)
    assert f"node n1 (127.0.0.2, no interface) can't reach node n0 at 127.0.0.1:{port}: connection refused" in str(
        error
    )


def test_nodes_that_reach_each_other_meet(tmp_path: Path) -> None:
    with gang(Plan(addresses=("127.0.0.1", "127.0.0.2")), tmp_path) as workers:
        workers.publish_port()
        assert all(workers.receive(rank)["sum"] == 2 for rank in range(2))


def test_an_unreachable_node_is_an_error_on_all_nodes_and_not_a_hang(tmp_path: Path) -> None:
    """The address is one that no machine has (RFC 5737), so that nothing listens there."""
    plan = Plan((Role.TRAINER,) * 3, addresses=("127.0.0.1", "192.0.2.1", "127.0.0.3"))
    with gang(plan, tmp_path) as workers:
        workers.publish_port()
        errors = [workers.receive(rank) for rank in range(3)]
    assert all(isinstance(error, UnreachablePeer) for error in errors)
    assert len({str(error) for error in errors}) == 1
    assert "can't reach node n1 at 192.0.2.1: n1 can't listen at its own address" in str(errors[0])
    assert str(errors[0]).endswith("(1 more link is unreachable)")


def test_rank_0_keeps_the_store_until_all_have_read_why_the_gang_fails() -> None:
    plan, store = Plan(), dist.HashStore()
    host = Thread(target=rendezvous._await_readers, args=(store, plan.launch(0)))
    host.start()
    *most, last = range(1, len(plan.roles))
    for rank in most:
        rendezvous._await_readers(store, plan.launch(rank))
    host.join(0.2)
    assert host.is_alive()
    rendezvous._await_readers(store, plan.launch(last))
    host.join(5)
    assert not host.is_alive()


def test_a_workload_that_checks_the_network_does_not_meet_before_it_runs(tmp_path: Path) -> None:
    with gang(Plan(per_node=True), tmp_path, ranks=[1]) as workers:
        assert workers.receive(1) == {"initialized": False}
        workers.ends[1].send("leave")
        assert workers.receive(1) == "left"
        assert workers.lines(1) == []


def test_a_job_sets_the_threads_and_the_timeout_of_rpc(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[rpc.TensorPipeRpcBackendOptions] = []
    monkeypatch.setattr(rpc, "init_rpc", lambda *_, rpc_backend_options, **__: given.append(rpc_backend_options))
    workload = replace(
        Plan().workload, rpc_threads=lambda _, counts: 20 * counts[Role.TRAINER], rpc_timeout_s=lambda _: 7.0
    )
    for chosen in (Plan().workload, workload):
        rendezvous._join_rpc(Plan().launch(0), chosen, dist.HashStore())
    assert [(one.num_worker_threads, one.rpc_timeout) for one in given] == [(16, 600.0), (40, 7.0)]


def test_a_collective_waits_for_work_that_takes_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that reads its input from a cache waits for one that encodes it."""
    given: list[timedelta] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *_, timeout, **__: given.append(timeout))
    rendezvous._join_process_group(Plan().launch(0), Plan().workload, dist.HashStore())
    assert given == [timedelta(days=1)]
