# pyright: standard, reportPrivateImportUsage=false
"""The rendezvous of one attempt's workers, and their ordered shutdown.

Rank 0 listens on an ephemeral port of the gang's address with one store (see `gang_store`). The others get the port
from the master through their nodes. RPC and the process group share it. Every wait is finite, and its error names the
missing workers.
"""

import logging
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed import rpc

from rolecall.logs import about
from rolecall.network import links
from rolecall.runtime import gang_store, shared_memory
from rolecall.runtime.backends import COLLECTIVE_TIMEOUT, choose_backend, shared_gpus
from rolecall.runtime.context import worker_name
from rolecall.runtime.heap import keep_freed_memory
from rolecall.runtime.reporter import Reporter
from rolecall.spec.errors import RendezvousTimeout, Stopped, UnreachablePeer
from rolecall.spec.plan import GangPlan, WorkerLaunch
from rolecall.spec.workdir import Workdir
from rolecall.spec.workload import Workload

_JOIN_TIMEOUT_S = 120.0
_PROBE_S = 10.0
_EXCHANGE_TIMEOUT_S = 30.0
# Long, because it is only for slow calls (an evaluation, an upload) and deadlocks: a dead peer closes its connections,
# and nodes detect stopped ones.
_CALL_TIMEOUT_S = 600.0
_MIN_RPC_THREADS = 16
# TensorPipe's transport `shm` polls continuously in every process. With fewer idle cores than workers, this slows the
# workers down: a job of four workers on two cores did 30 steps per second, and 82 over sockets. Instead, large tensors
# are in shared memory, and messages in sockets (`shared_memory`). `ibv` is untested for lack of hardware. The channel
# `cma` needs the right to trace processes. `cuda_ipc` aborts if a peer's GPU is hidden.
_CHANNELS = ["basic", "mpt_uv"]
_LEAVE_TIMEOUT_S = 20.0
_POLL_S = 0.01
_STOPPED = "stopped"
"""The key in the gang's store that a worker sets when it stops on request."""
_LOG = logging.getLogger(__name__)


@contextmanager
def join_before_role(
    launch: WorkerLaunch, workload: Workload[Any], workdir: Workdir, report: Reporter
) -> Generator[None]:
    """Join the gang for the duration of the role, see `join_gang`.

    The workers of a workload that runs on every node test the network first and join by themselves.
    """
    if workload.per_node:
        yield
        return
    with join_gang(launch, workload, workdir, report):
        yield


@contextmanager
def join_gang(launch: WorkerLaunch, workload: Workload[Any], workdir: Workdir, report: Reporter) -> Generator[None]:
    """Join the store, the RPC group and the process group of the workload, and leave them at the end of the body.

    The shutdown is ordered if the body succeeds or raises `Stopped`. Other errors skip it, because it would wait
    indefinitely for a dead peer. Raises `RendezvousTimeout` if a worker does not arrive within two minutes,
    `UnreachablePeer` if nodes can't reach each other, and `Stopped` if the body succeeds in a gang that stops.
    """
    entrance = _enter(launch, workload, workdir, report)
    _export_environment(launch, entrance.port)
    store, *others = entrance.assemble(lambda ranks: _missing(launch, ranks), _JOIN_TIMEOUT_S)
    _require_links(store, launch)
    keep_freed_memory()
    with shared_memory.presence(launch) if workload.rpc else nullcontext():
        if workload.rpc:
            _join_rpc(launch, workload, others[0])
        if launch.worker.role in workload.process_group:
            _join_process_group(launch, workload, store)
        if launch.worker.rank == 0:
            _log_shared_gpus(launch.gang)
        report.joined()
        try:
            yield
        except Stopped:
            if launch.worker.role not in workload.expendable:  # Without those, the gang continues.
                with suppress(dist.DistError):  # As in `_leave_gang`.
                    store.set(_STOPPED, "")
            _leave_gang(launch, workload, store)
            raise
        if _leave_gang(launch, workload, store):
            raise Stopped("stopped with its gang, as requested")


def _enter(launch: WorkerLaunch, workload: Workload[Any], workdir: Workdir, report: Reporter) -> gang_store.Entrance:
    # RPC has its own client: it sets timeouts, and a waiting call blocks its client.
    clients = 2 if workload.rpc else 1
    if launch.worker.rank == 0:
        entrance = gang_store.host(launch, clients, _JOIN_TIMEOUT_S)
        report.rendezvous(entrance.port)
        return entrance
    port = launch.rendezvous_port or _await_port(workdir)
    first = launch.gang.workers[0].node
    if launch.worker.node != first:
        # Fails immediately with a helpful message where the store would retry for two minutes.
        links.require_listener(links.Prober.of(launch), first, launch.master_addr, port, _PROBE_S)
    return gang_store.enter(launch, port, clients, _JOIN_TIMEOUT_S)


def _await_port(workdir: Workdir) -> int:
    """Wait for the file that the node writes as soon as the master has the port of rank 0."""
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    while not workdir.rendezvous.exists():
        if time.monotonic() > deadline:
            raise RendezvousTimeout(f"rank 0 did not publish the gang's port within {_JOIN_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
    return int(workdir.rendezvous.read_text())


def _missing(launch: WorkerLaunch, ranks: list[int]) -> RendezvousTimeout:
    workers = [launch.gang.workers[rank] for rank in ranks]
    names = [f"{worker_name(worker.role, worker.role_rank)} on node {worker.node}" for worker in workers]
    return RendezvousTimeout(f"not arrived within {_JOIN_TIMEOUT_S:.0f} s: {', '.join(names)}")


def _require_links(store: dist.Store, launch: WorkerLaunch) -> None:
    """Probe the links between the gang's nodes from one worker of each node, and share the result with all."""
    first_ranks = {worker.node: worker.rank for worker in reversed(launch.gang.workers)}
    if len(first_ranks) == 1:
        return
    begin = time.monotonic()
    exchange = _StoreExchange(store, launch.worker.node, tuple(first_ranks))
    if launch.worker.rank == first_ranks[launch.worker.node]:
        found = links.probe_links(links.Prober.of(launch), exchange, unreachable_only=True)
    else:
        found = links.gather_links(exchange)
    try:
        links.require_reachable(found)
    except UnreachablePeer:
        _await_readers(store, launch)
        raise
    text = "all links between %d nodes are reachable (probed in %.3f s)"
    _LOG.info(text, len(first_ranks), time.monotonic() - begin, extra=about("links_reachable"))


def _await_readers(store: dist.Store, launch: WorkerLaunch) -> None:
    """Rank 0, whose store ends with its process, waits until all have read the links: then all have the same error."""
    store.set(f"links-read/{launch.worker.rank}", "")
    if launch.worker.rank == 0:
        with suppress(dist.DistStoreError):  # A worker that died has no error to raise.
            ranks = range(launch.gang.world_size)
            store.wait([f"links-read/{rank}" for rank in ranks], timedelta(seconds=_LEAVE_TIMEOUT_S))


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


def _join_rpc(launch: WorkerLaunch, workload: Workload[Any], store: dist.Store) -> None:
    params = workload.params.model_validate(launch.params)
    threads = max(_MIN_RPC_THREADS, 2 * launch.gang.world_size)
    if workload.rpc_threads is not None:
        threads = max(threads, workload.rpc_threads(params, launch.gang.role_counts))
    timeout_s = _CALL_TIMEOUT_S if workload.rpc_timeout_s is None else workload.rpc_timeout_s(params)
    url = f"{_SCHEME}://{len(_STORES)}"
    _STORES[url] = store
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=threads,
        rpc_timeout=timeout_s,
        _transports=["uv"],
        _channels=_CHANNELS if launch.worker.gpu is None else [*_CHANNELS, "cuda_basic"],
        init_method=url,
    )
    for peer in launch.gang.workers:
        if launch.worker.gpu is not None and peer.gpu is not None:
            # Each worker sees only its own GPU, as the first.
            options.set_device_map(worker_name(peer.role, peer.role_rank), {0: 0})
    rpc.init_rpc(
        worker_name(launch.worker.role, launch.worker.role_rank),
        backend=rpc.BackendType.TENSORPIPE,  # pyright: ignore[reportAttributeAccessIssue] - torch adds the members
        rank=launch.worker.rank,
        world_size=launch.gang.world_size,
        rpc_backend_options=options,
    )


def _open_url(url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    yield _STORES[f"{_SCHEME}://{parts.netloc}"], int(query["rank"][0]), int(query["world_size"][0])


# `init_rpc` accepts no store but only a URL, whose handler can be registered.
_SCHEME = "rolecall-gang"
_STORES: dict[str, dist.Store] = {}
dist.register_rendezvous_handler(_SCHEME, _open_url)


def _join_process_group(launch: WorkerLaunch, workload: Workload[Any], store: dist.Store) -> None:
    members = [worker for worker in launch.gang.workers if worker.role in workload.process_group]
    dist.init_process_group(
        choose_backend(members),
        store=dist.PrefixStore("process-group", store),
        rank=members.index(launch.worker),
        world_size=len(members),
        timeout=COLLECTIVE_TIMEOUT,
    )


def _log_shared_gpus(gang: GangPlan) -> None:
    """Log that ranks share GPUs. RPC needs no other channels between them: it has none that uses NVLink."""
    for gpu, ranks in shared_gpus(gang).items():
        text = "ranks %s share GPU %s: process groups with several of them use Gloo instead of NCCL"
        _LOG.info(text, ", ".join(map(str, ranks)), gpu, extra=about("gpu_shared"))


def _export_environment(launch: WorkerLaunch, port: int) -> None:
    """Set the environment variables of torch, for workload code and libraries."""
    me = launch.worker
    same_node = [worker.rank for worker in launch.gang.workers if worker.node == me.node]
    os.environ.update(
        ROLE=me.role.value,
        ROLE_NAME=me.role.value,
        RANK=str(me.rank),
        WORLD_SIZE=str(launch.gang.world_size),
        LOCAL_RANK=str(same_node.index(me.rank)),
        ROLE_RANK=str(me.role_rank),
        ROLE_WORLD_SIZE=str(launch.gang.role_world_size(me.role)),
        MASTER_ADDR=launch.master_addr,
        MASTER_PORT=str(port),
    )


def _leave_gang(launch: WorkerLaunch, workload: Workload[Any], store: dist.Store) -> bool:
    """Leave after all workers are done, because their last calls would fail otherwise. Rank 0 with the store is last.

    A gang with expendable workers can't wait for all of them: its essential workers first release the others, and then
    return from their roles. Returns whether another worker has stopped on request, which a parameter server, whose role
    only serves calls, learns only here.
    """
    if workload.rpc:
        rpc.shutdown(graceful=not workload.expendable, timeout=0)
    if dist.is_initialized():
        dist.destroy_process_group()
    if launch.worker.role in workload.expendable:
        return False
    if launch.worker.rank != 0:
        with suppress(dist.DistError):  # Rank 0 has left with the store, because it waits only for a while.
            stopped = store.check([_STOPPED])
            store.set(f"left/{launch.worker.rank}", "1")
            return stopped
        return False
    others = [worker for worker in launch.gang.workers if worker.rank != 0 and worker.role not in workload.expendable]
    try:
        store.wait([f"left/{worker.rank}" for worker in others], timedelta(seconds=_LEAVE_TIMEOUT_S))
    except dist.DistStoreError:
        text = "not all workers of the gang reported within %.0f s that they left"
        _LOG.warning(text, _LEAVE_TIMEOUT_S, extra=about("leave_timeout"))
    return store.check([_STOPPED])
