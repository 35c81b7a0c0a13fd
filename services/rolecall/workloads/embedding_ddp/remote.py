# pyright: standard
"""The model whose embedding table is on parameter servers, and its parts.

`HybridModel` is the tutorial's: embedding bags on the servers, then layers in DDP. `Table` is what the driver creates
on the servers and passes to the trainers.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.nn.parallel import DistributedDataParallel

from rolecall.kit import Role
from rolecall.kit.optimizers import OptimizerChoice, dense_optimizer, sparse_optimizer
from rolecall.kit.parameter_server import (
    DistinctRows,
    EmbeddingBagShard,
    ProtocolsInTurn,
    RemoteEmbeddingBag,
    RequestedRows,
    ServerOptimizers,
    ShardedEmbedding,
    ShardedEmbeddingBag,
    ShardedModule,
    Shards,
    ShardSpec,
    TutorialProtocol,
    Update,
    UpdateProtocol,
    bag_sizes,
    bags_of,
    make_shards,
    parameter_references,
    require_bags,
)
from rolecall.kit.precision import weight_dtype
from rolecall.kit.worker import WorkerContext, current, worker_name
from rolecall.workloads.embedding_ddp.build import TABLE, TableInitializer, sharded_table, transfer_dtype
from rolecall.workloads.embedding_ddp.model import Lookup, one_each, pool
from rolecall.workloads.embedding_ddp.params import Params


@dataclass(frozen=True, slots=True)
class Table:
    """The embedding table on the parameter servers; can be sent by RPC."""

    shards: Shards
    """References to the shards, for checkpoints and the export, and for look-ups except with `protocol: tutorial`."""
    modules: tuple[RemoteModule, ...] = ()
    """With `protocol: tutorial`, the module that holds each shard."""


def make_table(context: WorkerContext[Params], rows: int) -> Table:
    """Create a table of `rows` rows on all parameter servers; called by the driver."""
    params, servers, trainers = context.params, context.count(Role.PARAMETER_SERVER), context.count(Role.TRAINER)
    if params.protocol != "tutorial":
        table = sharded_table(params, rows, servers)
        return Table(make_shards([table], trainers, synchronous=params.protocol == "sync"))
    modules = tuple(_remote_module(params, ShardSpec(index, servers, rows)) for index in range(servers))
    for module in modules:
        # Waits until the module exists. If another server drops its reference before that, torch forgets the module,
        # and calls wait for it forever.
        module.remote_parameters()
    make = partial(_existing, [module.get_module_rref() for module in modules])
    # Each trainer's DistributedOptimizer updates the weights. The servers' own never steps, and must need no memory.
    unused = OptimizerChoice(torch.optim.SGD, {})
    sharded = ShardedModule(TABLE, rows, make, unused, range(servers))
    return Table(make_shards([sharded], trainers, synchronous=False), modules)


def _remote_module(params: Params, spec: ShardSpec) -> RemoteModule:
    """A server's shard, on its GPU if it has one; torch returns outputs to the CPU unless there are device maps."""
    server = worker_name(Role.PARAMETER_SERVER, spec.index)
    arguments = {
        "dim": params.embedding_dim,
        "initializer": TableInitializer(params.seed, params.embedding_std),
        "dtype": weight_dtype(params.precision),
        "mode": "mean" if params.pooling == "mean" else "sum",
        "sparse": params.optimizer is None,
    }
    return RemoteModule(f"{server}/{rpc.rpc_sync(server, _device)}", EmbeddingBagShard, (spec,), arguments)


def _device() -> str:
    """Called by the driver on a server: its device."""
    return str(current().device)


def _existing(references: Sequence[rpc.RRef[nn.Module]], spec: ShardSpec) -> nn.Module:
    """A shard of a module that exists on its server."""
    return references[spec.index].local_value()


@dataclass(slots=True)
class _Prepared:
    """The look-up of a batch that comes next."""

    ids: Tensor
    wanted: DistinctRows
    by_servers: bool
    """True if the servers pool."""
    requested: RequestedRows | None = None


class PooledEmbedding(nn.Module):
    """Pools the values of each bag in this trainer or on the servers, wherever fewer bytes are sent.

    For a step, a trainer that pools sends each distinct id once, receives its vector and returns its gradient.
    Servers that pool receive all ids and an offset per bag, send a sum for each bag with ids of theirs, and receive its
    gradient. Both ways give the same gradients, so each trainer counts for its own share of each batch.
    """

    def __init__(self, params: Params, table: Table, device: torch.device) -> None:
        super().__init__()
        shards = table.shards.of(TABLE)
        self._servers = len(shards)
        self._vectors = ShardedEmbedding(shards)
        self._sums = ShardedEmbeddingBag(shards)
        self._mean = params.pooling == "mean"
        # Rows that are requested ahead are pooled by the trainer.
        self._pool_at = "trainer" if params.pooling == "none" or params.staleness else params.pool_at
        dtype = transfer_dtype(params) or weight_dtype(params.precision)
        self._vector_bytes = params.embedding_dim * dtype.itemsize
        self._device = device
        self._prepared: deque[_Prepared] = deque()

    def prepare(self, ids: Tensor, offsets: Tensor) -> None:
        """Find the distinct rows of these ids ahead of `forward` with the same tensors. `forward` must be called in the
        order of the preparations."""
        if self._pool_at != "server":
            self._prepared.append(self._prepare(ids, offsets))

    def request_prepared(self, after: Update | None) -> None:
        """Begin the look-ups of all prepared ids whose rows this trainer pools; with `after`, following this update."""
        for one in self._prepared:
            if not one.by_servers:
                one.requested = one.requested or self._vectors.request(one.wanted, after=after)

    def forget_prepared(self) -> None:
        """Prepared ids are not going to be looked up."""
        self._prepared.clear()

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """The pooled vectors [b, dim] of the bags, on this trainer's device."""
        if self._pool_at == "server":
            return self._pooled_by_servers(ids, offsets)
        ready = bool(self._prepared) and self._prepared[0].ids is ids
        prepared = self._prepared.popleft() if ready else self._prepare(ids, offsets)
        if prepared.by_servers:
            return self._pooled_by_servers(ids, offsets)
        slots = offsets if one_each(offsets, len(ids)) else bags_of(ids, offsets)
        bags = Lookup(ids=ids, slots=slots, rows=len(offsets), width=1, mean=self._mean)
        requested = prepared.requested or self._vectors.request(prepared.wanted)
        return pool(requested.expand().to(self._device), bags)

    def _prepare(self, ids: Tensor, offsets: Tensor) -> _Prepared:
        wanted = self._vectors.prepare(ids)
        by_servers = self._pool_at == "auto" and sums_are_smaller(
            ids, offsets, len(wanted.starts), servers=self._servers, vector_bytes=self._vector_bytes
        )
        return _Prepared(ids, wanted, by_servers)

    def _pooled_by_servers(self, ids: Tensor, offsets: Tensor) -> Tensor:
        sums = self._sums(ids, offsets).to(self._device)
        return sums / bag_sizes(ids, offsets).clamp(min=1).unsqueeze(1).to(self._device) if self._mean else sums


def sums_are_smaller(ids: Tensor, offsets: Tensor, distinct: int, *, servers: int, vector_bytes: int) -> bool:
    """True if pooling on the servers sends fewer bytes than sending `distinct` vectors and their gradients.

    Both look-ups and gradients contain ids, and offsets if the servers pool.
    """
    if (bag_sizes(ids, offsets) <= 1).all():  # Without several ids in a bag, there are as many sums as ids.
        return False
    bags, owners = bags_of(ids, offsets), ids % servers
    # A server sends a sum for each bag with ids of its own.
    sums = sum(len(torch.unique_consecutive(bags[owners == server])) for server in range(servers))
    sum_bytes = 2 * (len(ids) * ids.itemsize + sums * (offsets.itemsize + vector_bytes))
    return sum_bytes < 2 * distinct * (ids.itemsize + vector_bytes)


class HybridModel(nn.Module):
    """Embedding bags on parameter servers, then layers `fc` in DDP on this trainer's device.

    `remote_emb_module` is a `RemoteModule` of an `EmbeddingBag`, or anything else whose `forward(indices, offsets)`
    returns a vector per bag. A row has `width` bags, whose vectors are concatenated for `fc`. Subclasses can override
    `forward`.
    """

    def __init__(self, remote_emb_module: nn.Module, fc: nn.Module, device: torch.device, *, width: int = 1) -> None:
        super().__init__()
        self.remote_emb_module = remote_emb_module
        self.fc = DistributedDataParallel(fc, device_ids=[device] if device.type == "cuda" else None)
        self.device = device
        self.width = width

    def forward(self, indices: Tensor, offsets: Tensor, *others: Tensor) -> Tensor:
        """The output of `fc` for the bags [rows · width] in flat indices [n] and offsets, and other inputs [rows, …].

        Raises `ValueError` if offsets don't begin at 0, don't ascend or don't fill the rows.
        """
        require_bags(indices, offsets)
        if len(offsets) % self.width:
            raise ValueError(f"{len(offsets)} bags don't fill rows of {self.width} bags")
        vectors = self.remote_emb_module.forward(indices, offsets).to(self.device)
        pooled = vectors.reshape(len(vectors) // self.width, self.width * vectors.shape[1])
        return self.fc(pooled, *(other.to(self.device) for other in others))


def make_embedding(params: Params, table: Table, device: torch.device) -> RemoteEmbeddingBag | PooledEmbedding:
    """The trainers' access to the table, in the form of the protocol."""
    if params.protocol == "tutorial":
        return RemoteEmbeddingBag(table.modules, "mean" if params.pooling == "mean" else "sum")
    return PooledEmbedding(params, table, device)


def make_protocol(context: WorkerContext[Params], table: Table, model: HybridModel) -> UpdateProtocol:
    """The protocol that updates the weights on the servers and the layers of `model`."""
    params, local = context.params, model.fc.module
    embedding = model.remote_emb_module
    if not isinstance(embedding, RemoteEmbeddingBag):
        optimizer = dense_optimizer(params.dense_optimizer).build(local.parameters())
        return ServerOptimizers(table.shards, context.role_rank, optimizer)
    remote_parameters, local_parameters = embedding.remote_parameters(), parameter_references(local)
    if params.optimizer is not None:
        both = [*remote_parameters, *local_parameters]
        return TutorialProtocol(both, dense_optimizer(params.optimizer), in_step=False)
    return ProtocolsInTurn(
        TutorialProtocol(remote_parameters, sparse_optimizer(params.sparse_optimizer), in_step=False),
        TutorialProtocol(local_parameters, dense_optimizer(params.dense_optimizer), in_step=False),
    )
