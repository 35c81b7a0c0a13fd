"""The rendezvous of one attempt's workers, and their ordered shutdown.

Rank 0 listens on an ephemeral port of the gang's address with one store (see `gang_store`); the others learn the port
through the master and their nodes. RPC and the process group share it. Every wait is finite and names who is missing.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed import rpc

from rolecall.edge.logs import about
from rolecall.network import links
from rolecall.runtime import gang_store
from rolecall.runtime.context import worker_name
from rolecall.runtime.reporter import Reporter
from rolecall.spec.errors import RendezvousTimeout, Stopped
from rolecall.spec.plan import WorkerLaunch, WorkerPlan
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import Workload

_JOIN_TIMEOUT_S = 120.0
_PROBE_S = 10.0
_EXCHANGE_TIMEOUT_S = 30.0
# Generous: a dead peer closes its connections and a stopped one is noticed by its node, so that this bounds only
# what is slow (an evaluation, an upload) or a deadlock.
_CALL_TIMEOUT_S = 600.0
# A check of the network does not wait for it: RPC's start is itself a round of calls, and waits as long.
_PREFLIGHT_CALL_TIMEOUT_S = 30.0
_LEAST_RPC_THREADS = 16
# Of TensorPipe's transports `shm` polls without a pause in every process. With fewer idle cores than workers that
# takes the time away from the workers: a job of four on two cores did 30 steps a second, over sockets 82. `ibv` needs
# hardware to be tried on. Of its channels `cma` needs the right to trace processes, and `cuda_ipc` aborts when a
# peer's GPU is hidden.
_CHANNELS = ["basic", "mpt_uv"]
_PART_TIMEOUT_S = 20.0
_POLL_S = 0.01
_LOG = logging.getLogger(__name__)


@contextmanager
def joined(launch: WorkerLaunch, workload: Workload[Any], workdir: Workdir, report: Reporter) -> Iterator[None]:
    """Be part of the gang: the store, the RPC group and the process group that the workload asks for.

    Raises `RendezvousTimeout` if not all arrive within two minutes, `UnreachablePeer` if nodes can't reach each other.
    A workload that runs on every node checks the network first, so its workers do not join here: see `met`.
    """
    if workload.per_node:
        yield
        return
    with met(launch, workload, workdir, report):
        yield


@contextmanager
def met(launch: WorkerLaunch, workload: Workload[Any], workdir: Workdir, report: Reporter) -> Iterator[None]:
    """Join the gang, and leave it at the end of the body.

    It leaves in order when the body succeeds or raises `Stopped`. After any other error it exits without a shutdown,
    which would wait indefinitely for a dead peer.
    """
    entrance = _enter(launch, workload, workdir, report)
    _export_environment(launch, entrance.port)
    store, *others = entrance.assemble(lambda ranks: _missing(launch, ranks), _JOIN_TIMEOUT_S)
    _require_reach(store, launch)
    if workload.rpc:
        _join_rpc(launch, workload, others[0])
    if launch.worker.role in workload.process_group:
        _join_process_group(launch, workload, store)
    report.joined()
    try:
        yield
    except Stopped:
        _part(launch, workload, store)
        raise
    _part(launch, workload, store)


def _enter(launch: WorkerLaunch, workload: Workload[Any], workdir: Workdir, report: Reporter) -> gang_store.Entrance:
    # RPC has a client of its own: it sets timeouts, and a call that waits holds the client that it goes by.
    clients = 2 if workload.rpc else 1
    if launch.worker.rank == 0:
        entrance = gang_store.host(launch, clients, _JOIN_TIMEOUT_S)
        report.rendezvous(entrance.port)
        return entrance
    port = launch.rendezvous_port or _await_port(workdir)
    _probe_first(launch, port)
    return gang_store.enter(launch, port, clients, _JOIN_TIMEOUT_S)


def _await_port(workdir: Workdir) -> int:
    """The node makes the file as soon as the master knows where rank 0 listens."""
    give_up = time.monotonic() + _JOIN_TIMEOUT_S
    while not workdir.rendezvous.exists():
        if time.monotonic() > give_up:
            raise RendezvousTimeout(f"rank 0 did not publish the gang's port within {_JOIN_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
    return int(workdir.rendezvous.read_text())


def _probe_first(launch: WorkerLaunch, port: int) -> None:
    """See at once what the store would try for two minutes, and say it in words that help."""
    first = launch.gang.workers[0].node
    if launch.worker.node != first:
        links.require_listener(links.Prober.of(launch), first, launch.master_addr, port, _PROBE_S)


def _missing(launch: WorkerLaunch, ranks: list[int]) -> RendezvousTimeout:
    names = ", ".join(_describe(launch.gang.workers[rank]) for rank in ranks)
    return RendezvousTimeout(f"not arrived within {_JOIN_TIMEOUT_S:.0f} s: {names}")


def _require_reach(store: dist.Store, launch: WorkerLaunch) -> None:
    """Probe the links between the gang's nodes: one worker of each node does, and all get the result."""
    first_ranks = {worker.node: worker.rank for worker in reversed(launch.gang.workers)}
    if len(first_ranks) == 1:
        return
    begin = time.monotonic()
    exchange = _StoreExchange(store, launch.worker.node, tuple(first_ranks))
    if launch.worker.rank == first_ranks[launch.worker.node]:
        found = links.probe_links(links.Prober.of(launch), exchange, unreachable_only=True)
    else:
        found = links.gather_links(exchange)
    links.require_reachable(found)
    text = "all links between %d nodes are reachable (probed in %.3f s)"
    _LOG.info(text, len(first_ranks), time.monotonic() - begin, extra=about("links_reachable"))


@dataclass(frozen=True, slots=True)
class _StoreExchange:
    """An exchange in the gang's store, which each node has already reached."""

    store: dist.Store
    node: str
    nodes: tuple[str, ...]

    def post(self, topic: str, text: str) -> None:
        self.store.set(f"{topic}/{self.node}", text)

    def gather(self, topic: str) -> dict[str, str]:
        keys = {f"{topic}/{node}": node for node in self.nodes}
        try:
            self.store.wait(list(keys), timedelta(seconds=_EXCHANGE_TIMEOUT_S))
        except dist.DistStoreError as error:
            missing = [node for key, node in keys.items() if not self.store.check([key])]
            raise RendezvousTimeout(
                f"no {topic} within {_EXCHANGE_TIMEOUT_S:.0f} s from node {', '.join(missing)}"
            ) from error
        return {node: text.decode() for node, text in zip(self.nodes, self.store.multi_get(list(keys)), strict=True)}


def _describe(worker: WorkerPlan) -> str:
    return f"{worker_name(worker.role, worker.role_rank)} on node {worker.node}"


def _join_rpc(launch: WorkerLaunch, workload: Workload[Any], store: dist.Store) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=_rpc_threads(launch, workload),
        rpc_timeout=_PREFLIGHT_CALL_TIMEOUT_S if workload.per_node else _CALL_TIMEOUT_S,
        _transports=["uv"],
        _channels=_CHANNELS if launch.worker.gpu is None else [*_CHANNELS, "cuda_basic"],
        init_method=_handed_over(store),
    )
    for peer in _peers_with_gpus(launch):
        # Each worker sees its own GPU alone, as the first.
        options.set_device_map(peer, {0: 0})
    rpc.init_rpc(
        worker_name(launch.worker.role, launch.worker.role_rank),
        backend=rpc.BackendType.TENSORPIPE,  # pyright: ignore[reportAttributeAccessIssue] - torch adds the members
        rank=launch.worker.rank,
        world_size=launch.gang.world_size,
        rpc_backend_options=options,
    )


def _handed_over(store: dist.Store) -> str:
    """The URL under which RPC's start finds `store`."""
    url = f"{_SCHEME}://{len(_HANDED_OVER)}"
    _HANDED_OVER[url] = store
    return url


def _hand_over(url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    yield _HANDED_OVER[f"{_SCHEME}://{parts.netloc}"], int(query["rank"][0]), int(query["world_size"][0])


# `init_rpc` takes no store but only a URL, for which torch lets others provide.
_SCHEME = "rolecall-gang"
_HANDED_OVER: dict[str, dist.Store] = {}
dist.register_rendezvous_handler(_SCHEME, _hand_over)


def _rpc_threads(launch: WorkerLaunch, workload: Workload[Any]) -> int:
    threads = max(_LEAST_RPC_THREADS, 2 * launch.gang.world_size)
    if workload.rpc_threads is None:
        return threads
    params = workload.params.model_validate(launch.params)
    return max(threads, workload.rpc_threads(params, launch.gang.role_counts))


def _peers_with_gpus(launch: WorkerLaunch) -> list[str]:
    if launch.worker.gpu is None:
        return []
    return [worker_name(worker.role, worker.role_rank) for worker in launch.gang.workers if worker.gpu is not None]


def _join_process_group(launch: WorkerLaunch, workload: Workload[Any], store: dist.Store) -> None:
    members = [worker.rank for worker in launch.gang.workers if worker.role in workload.process_group]
    dist.init_process_group(
        "cpu:gloo" if launch.worker.gpu is None else "cpu:gloo,cuda:nccl",
        store=dist.PrefixStore("process-group", store),
        rank=members.index(launch.worker.rank),
        world_size=len(members),
        timeout=timedelta(seconds=_CALL_TIMEOUT_S),
    )


def _export_environment(launch: WorkerLaunch, port: int) -> None:
    """Torch's own contract, for workload code and libraries that read it."""
    me = launch.worker
    neighbours = [worker.rank for worker in launch.gang.workers if worker.node == me.node]
    os.environ.update(
        ROLE=me.role.value,
        ROLE_NAME=me.role.value,
        RANK=str(me.rank),
        WORLD_SIZE=str(launch.gang.world_size),
        LOCAL_RANK=str(neighbours.index(me.rank)),
        ROLE_RANK=str(me.role_rank),
        ROLE_WORLD_SIZE=str(launch.gang.role_world_size(me.role)),
        MASTER_ADDR=launch.master_addr,
        MASTER_PORT=str(port),
    )


def _part(launch: WorkerLaunch, workload: Workload[Any], store: dist.Store) -> None:
    """Nobody leaves before all are done, or the others' last calls would fail; rank 0, who has the store, is last.

    A gang of which some may be lost can't wait for all: there the essential workers let the others go, and only then
    return from their roles.
    """
    if workload.rpc:
        rpc.shutdown(graceful=not workload.expendable, timeout=0)
    if dist.is_initialized():
        dist.destroy_process_group()
    if launch.worker.role in workload.expendable:
        return
    if launch.worker.rank != 0:
        store.set(f"parted/{launch.worker.rank}", "1")
        return
    _await_parting(store, [w for w in launch.gang.workers if w.rank != 0 and w.role not in workload.expendable])


def _await_parting(store: dist.Store, others: list[WorkerPlan]) -> None:
    try:
        store.wait([f"parted/{worker.rank}" for worker in others], timedelta(seconds=_PART_TIMEOUT_S))
    except dist.DistStoreError:
        text = "not all workers of the gang reported within %.0f s that they left"
        _LOG.warning(text, _PART_TIMEOUT_S, extra=about("leave_timeout"))
