"""The embedding table: one shard on each parameter server, and the trainers' view of all of them.

Row `i` of the table is row `i // count` of shard `i % count`. Gradients reach a shard through distributed autograd,
as sparse tensors over the rows that a batch touched; the shard's own optimizer applies them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed.autograd as dist_autograd
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.optimizers import scale_rates
from rolecall.kit.parameter_server.remote import look_up
from rolecall.kit.precision import weight_dtype
from rolecall.runtime import context as runtime_context
from rolecall.runtime.checkpoint import flatten_optimizer, restore_optimizer
from rolecall.runtime.context import worker_name
from rolecall.runtime.remote import StepBarrier, passed_on
from rolecall.spec.plan import CheckpointManifest, CheckpointPart
from rolecall.spec.role import Role
from rolecall.workloads.embedding_ddp.optimizers import sparse_optimizer
from rolecall.workloads.embedding_ddp.params import Params

_BLOCK_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class _Contribution:
    """One trainer's gradient, still in its distributed autograd context, and the step's factor of the learning rate."""

    context_id: int
    rate_factor: float


class EmbeddingShard:
    """Every `count`-th row of a table of `rows` rows, and the state of their optimizer.

    With `protocol: sync` a step's gradients are applied once, as their mean, when all `trainers` have contributed;
    before that nobody gets an answer, so that the next step's look-ups see the new rows. Otherwise each is applied when
    it comes.
    """

    def __init__(self, params: Params, index: int, count: int, rows: int, trainers: int) -> None:
        # The indices come from the backward pass of a look-up that was in range; checking them again costs each step.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._name = worker_name(Role.PARAMETER_SERVER, index)
        self._trainers = trainers
        self._contributions = StepBarrier(trainers if params.protocol == "sync" else 1, self._settle)
        self.weight = nn.Parameter(_own_rows(params, index, count, rows))
        kind, arguments = sparse_optimizer(params.sparse_optimizer)
        self._optimizer = kind([self.weight], **arguments)

    def lookup(self, rows: torch.Tensor) -> torch.Tensor:
        """The vectors [n, dim] of this shard's own row numbers [n]."""
        return F.embedding(rows, self.weight, sparse=True)

    def parameter(self) -> rpc.RRef[nn.Parameter]:
        """A reference to the weights, for torch's DistributedOptimizer."""
        return rpc.RRef(self.weight)

    def contribute(self, context_id: int, step: int, trainer: int, rate_factor: float) -> Future[None]:
        """Take trainer `trainer`'s gradient of `step`; the future is done once it is applied."""
        return self._contributions.join(step, trainer, _Contribution(context_id, rate_factor))

    def _settle(self, contributions: list[_Contribution]) -> None:
        gradients = [self._gradient(contribution.context_id) for contribution in contributions]
        self._apply(gradients, contributions[0].rate_factor)

    def _gradient(self, context_id: int) -> torch.Tensor:
        return dist_autograd.get_gradients(context_id)[self.weight]

    def _apply(self, gradients: list[torch.Tensor], rate_factor: float) -> None:
        total = gradients[0]
        for gradient in gradients[1:]:
            total = total + gradient
        # Each trainer's loss is scaled for DDP, which takes the mean over the trainers: the table must do the same.
        self.weight.grad = (total / self._trainers).coalesce()
        scale_rates(self._optimizer, rate_factor)
        self._optimizer.step()

    def save(self, step: int) -> CheckpointPart:
        """Write this shard's part of the checkpoint after `step`."""
        tensors = {"weight": self.weight.detach(), **flatten_optimizer(self._optimizer)}
        return runtime_context.current().checkpoints.save_part(step, self._name, tensors)

    def load(self, manifest: CheckpointManifest) -> None:
        """Go back to what `save` wrote."""
        tensors = runtime_context.current().checkpoints.load_part(manifest, self._name)
        with torch.no_grad():
            self.weight.copy_(tensors["weight"])
        restore_optimizer(self._optimizer, tensors)

    def block(self, start: int, stop: int) -> torch.Tensor:
        """This shard's own rows [start, stop), for the export."""
        return self.weight.detach()[start:stop]


def first_rows(params: Params, rows: int) -> Iterator[torch.Tensor]:
    """The table's first values in blocks of consecutive rows; the same however many shards there are."""
    for block, start in enumerate(range(0, rows, _BLOCK_ROWS)):
        generator = torch.Generator().manual_seed((params.seed * 1_000_003 + block) % 2**63)
        size = (min(_BLOCK_ROWS, rows - start), params.embedding_dim)
        yield torch.randn(size, generator=generator, dtype=torch.float64).mul_(params.embedding_std)


def _own_rows(params: Params, index: int, count: int, rows: int) -> torch.Tensor:
    """Shard `index`'s rows, made without ever holding the whole table."""
    own = torch.empty((len(range(index, rows, count)), params.embedding_dim), dtype=weight_dtype(params.precision))
    filled = 0
    for block, values in enumerate(first_rows(params, rows)):
        mine = values[(index - block * _BLOCK_ROWS) % count :: count]
        own[filled : filled + len(mine)] = mine
        filled += len(mine)
    return own


Shards = list[rpc.RRef[EmbeddingShard]]


class RemoteEmbedding(nn.Module):
    """A trainer's view of the table: each distinct id of a batch crosses the wire once, to the shard that has its
    row.
    """

    def __init__(self, shards: Shards) -> None:
        super().__init__()
        self._shards = shards

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The vectors [n, dim] of the ids [n]."""
        return look_up(ids, len(self._shards), self._ask)

    def _ask(self, shard: int, rows: torch.Tensor) -> Future[torch.Tensor]:
        return rpc.rpc_async(self._shards[shard].owner(), _lookup, args=(self._shards[shard], rows))

    def push(self, context_id: int, step: int, trainer: int, rate_factor: float) -> list[Future[None]]:
        """Ask every shard to apply what the backward pass of this context left there."""
        return [
            rpc.rpc_async(shard.owner(), _contribute, args=(shard, context_id, step, trainer, rate_factor))
            for shard in self._shards
        ]

    def parameters_for_torch(self) -> list[rpc.RRef[nn.Parameter]]:
        """References to the shards' weights, for torch's DistributedOptimizer."""
        return [rpc.rpc_sync(shard.owner(), _parameter, args=(shard,)) for shard in self._shards]

    def save(self, step: int) -> list[Future[CheckpointPart]]:
        """Have every shard write its part at the same time."""
        return [rpc.rpc_async(shard.owner(), _save, args=(shard, step)) for shard in self._shards]

    def load(self, manifest: CheckpointManifest) -> None:
        """Have every shard go back to `manifest`."""
        torch.futures.wait_all([rpc.rpc_async(shard.owner(), _load, args=(shard, manifest)) for shard in self._shards])

    def blocks(self, rows: int) -> Iterator[torch.Tensor]:
        """The whole table of `rows` rows in order, in blocks [b, dim] that fit in memory."""
        count = len(self._shards)
        for start in range(0, -(-rows // count), _BLOCK_ROWS):
            answers = [rpc.rpc_async(s.owner(), _block, args=(s, start, start + _BLOCK_ROWS)) for s in self._shards]
            parts = torch.futures.wait_all(answers)
            whole = parts[0].new_empty((sum(map(len, parts)), parts[0].shape[1]))
            for index, part in enumerate(parts):
                whole[index::count] = part
            yield whole


def _lookup(shard: rpc.RRef[EmbeddingShard], rows: torch.Tensor) -> torch.Tensor:
    return shard.local_value().lookup(rows)


@rpc.functions.async_execution
def _contribute(
    shard: rpc.RRef[EmbeddingShard], context_id: int, step: int, trainer: int, rate_factor: float
) -> Future[None]:
    return passed_on(shard.local_value().contribute(context_id, step, trainer, rate_factor))


def _parameter(shard: rpc.RRef[EmbeddingShard]) -> rpc.RRef[nn.Parameter]:
    return shard.local_value().parameter()


def _save(shard: rpc.RRef[EmbeddingShard], step: int) -> CheckpointPart:
    return shard.local_value().save(step)


def _load(shard: rpc.RRef[EmbeddingShard], manifest: CheckpointManifest) -> None:
    shard.local_value().load(manifest)


def _block(shard: rpc.RRef[EmbeddingShard], start: int, stop: int) -> torch.Tensor:
    return shard.local_value().block(start, stop)
