"""How one step's gradients become new weights, here and on the parameter servers."""

import torch
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from rolecall.kit.optimizers import dense_optimizer, scale_rates, set_gradients
from rolecall.runtime.checkpoint import flatten_optimizer, restore_optimizer
from rolecall.workloads.embedding_ddp.embedding import RemoteEmbedding
from rolecall.workloads.embedding_ddp.optimizers import sparse_optimizer
from rolecall.workloads.embedding_ddp.params import Params


class ServerOwned:
    """Each server's own optimizer steps its shard, this trainer's steps the dense layers (`sync` and `async`)."""

    def __init__(self, params: Params, rank: int, table: RemoteEmbedding, dense: nn.Module) -> None:
        self._rank = rank
        self._table = table
        self._parameters = list(dense.parameters())
        kind, arguments = dense_optimizer(params.dense_optimizer)
        self._optimizer = kind(self._parameters, **arguments)

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """The servers work while the dense layers step."""
        pushed = self._table.push(context_id, step, self._rank, rate_factor)
        set_gradients(self._parameters, dist_autograd.get_gradients(context_id))
        scale_rates(self._optimizer, rate_factor)
        self._optimizer.step()
        torch.futures.wait_all(pushed)

    def state(self) -> dict[str, torch.Tensor]:
        """Of the dense layers; the servers keep their own."""
        return flatten_optimizer(self._optimizer)

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Of the dense layers."""
        restore_optimizer(self._optimizer, tensors)


class TutorialProtocol:
    """The tutorial's way: torch's DistributedOptimizer steps local and remote parameters, one for each trainer.

    Its state lives in each parameter's process, once per trainer, where nothing can read it: a resumed attempt
    begins with fresh optimizer state, and learning rates stay constant.
    """

    def __init__(self, params: Params, table: RemoteEmbedding, dense: nn.Module) -> None:
        sparse, sparse_arguments = sparse_optimizer(params.sparse_optimizer)
        kind, arguments = dense_optimizer(params.dense_optimizer)
        self._optimizers = [
            DistributedOptimizer(sparse, table.parameters_for_torch(), **sparse_arguments),
            DistributedOptimizer(kind, [rpc.RRef(parameter) for parameter in dense.parameters()], **arguments),
        ]

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """Blocks until every parameter is stepped."""
        for optimizer in self._optimizers:
            optimizer.step(context_id)

    def state(self) -> dict[str, torch.Tensor]:
        """None that can be had."""
        return {}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Nothing to put back."""
