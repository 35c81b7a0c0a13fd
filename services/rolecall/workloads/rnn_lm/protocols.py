"""How one step's gradients become new weights, here and on the parameter servers."""

import math

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from rolecall.kit.optimizers import dense_optimizer, scale_rates, set_gradients
from rolecall.runtime.checkpoint import flatten_optimizer, restore_optimizer
from rolecall.workloads.rnn_lm.hosting import scale_gradients, squared_norm
from rolecall.workloads.rnn_lm.layers import Shards
from rolecall.workloads.rnn_lm.params import Params


class Synchronous:
    """Every optimizer steps once, on the mean gradient of all trainers, clipped by its norm over all weights."""

    def __init__(self, params: Params, rank: int, shards: Shards, recurrent: nn.Module) -> None:
        self._max_norm = params.max_grad_norm
        self._rank = rank
        self._shards = shards
        self._recurrent = recurrent
        kind, arguments = dense_optimizer(params.optimizer)
        self._optimizer = kind(recurrent.parameters(), **arguments)

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """The servers work while the local weights step."""
        gathered = self._shards.gather(context_id, step, self._rank)
        set_gradients(self._recurrent.parameters(), dist_autograd.get_gradients(context_id))
        scale = self._scale(squared_norm(self._recurrent) + sum(torch.futures.wait_all(gathered)))
        updated = self._shards.update(step, scale, rate_factor)
        scale_gradients(self._recurrent, scale)
        scale_rates(self._optimizer, rate_factor)
        self._optimizer.step()
        torch.futures.wait_all(updated)

    def _scale(self, squared: float) -> float:
        """As torch's `clip_grad_norm_`; the same on every trainer, since DDP's and the servers' means are."""
        if self._max_norm is None:
            return 1.0
        return min(1.0, self._max_norm / (math.sqrt(squared) + 1e-6))

    def state(self) -> dict[str, torch.Tensor]:
        """Of the local weights; the servers keep their own."""
        return flatten_optimizer(self._optimizer)

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Of the local weights."""
        restore_optimizer(self._optimizer, tensors)


class TutorialProtocol:
    """The tutorial's way: torch's DistributedOptimizer steps local and remote weights, one for each trainer.

    Its state lives in each weight's process, once per trainer, where nothing can read it: a resumed attempt begins
    with fresh optimizer state, and learning rates stay constant.
    """

    def __init__(self, params: Params, shards: Shards, recurrent: nn.Module) -> None:
        kind, arguments = dense_optimizer(params.optimizer)
        own = [rpc.RRef(parameter) for parameter in recurrent.parameters()]
        self._optimizer = DistributedOptimizer(kind, [*shards.parameters(), *own], **arguments)

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """Blocks until every trainer has stepped every weight.

        Autograd refuses to go back through a weight that another trainer has changed since the forward pass.
        """
        self._optimizer.step(context_id)
        dist.barrier()

    def state(self) -> dict[str, torch.Tensor]:
        """None that can be had."""
        return {}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Nothing to put back."""
