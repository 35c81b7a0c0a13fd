"""How one step's gradients become new weights, in the trainer and on the parameter servers."""

import math
from typing import Protocol

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch.optim import Optimizer

from rolecall.kit.optimizers import OptimizerChoice, scale_gradients, scale_rates, set_gradients, squared_norm
from rolecall.kit.parameter_server.remote import Shards
from rolecall.runtime.checkpoint import flatten_optimizer, restore_optimizer


class UpdateProtocol(Protocol):
    """Applies the gradients that a backward pass left in a distributed autograd context."""

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """Returns once the next step may look vectors up."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizer state that this trainer holds."""
        ...

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave."""
        ...


class ServerOptimizers:
    """Each server's own optimizer steps its shards, this trainer's `local` one the weights that it has itself, if any.

    With `max_norm` gradients are scaled as by torch's `clip_grad_norm_`, by their norm over all weights, local and
    remote; the shards must be synchronous then.
    """

    def __init__(
        self, shards: Shards, rank: int, local: Optimizer | None = None, *, max_norm: float | None = None
    ) -> None:
        self._shards = shards
        self._rank = rank
        self._local = local
        self._max_norm = max_norm
        self._parameters = [one for group in local.param_groups for one in group["params"]] if local else []

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """The servers work while the local weights step."""
        if self._max_norm is None:
            applied = self._shards.apply(context_id, step, self._rank, rate_factor)
            set_gradients(self._parameters, dist_autograd.get_gradients(context_id))
        else:
            gathered = self._shards.gather(context_id, step, self._rank)
            set_gradients(self._parameters, dist_autograd.get_gradients(context_id))
            # The same on every trainer, since DDP's and the servers' means are.
            norm = math.sqrt(squared_norm(self._parameters) + sum(torch.futures.wait_all(gathered)))
            scale = min(1.0, self._max_norm / (norm + 1e-6))
            applied = self._shards.update(step, scale, rate_factor)
            scale_gradients(self._parameters, scale)
        if self._local:
            scale_rates(self._local, rate_factor)
            self._local.step()
        torch.futures.wait_all(applied)

    def state(self) -> dict[str, torch.Tensor]:
        """Of the local weights; the servers keep their own."""
        return flatten_optimizer(self._local) if self._local else {}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Of the local weights."""
        if self._local:
            restore_optimizer(self._local, tensors)


class TutorialProtocol:
    """The tutorials' way: torch's DistributedOptimizer steps local and remote weights, one for each trainer.

    Its state lives in each weight's process, once per trainer, where nothing can read it: a resumed attempt begins
    with fresh optimizer state, and learning rates stay constant. With `in_step` trainers begin each step together:
    autograd refuses to go back through a weight that another trainer has changed since the forward pass.
    """

    def __init__(
        self, shards: Shards, remote: OptimizerChoice, local: nn.Module, optimizer: OptimizerChoice, *, in_step: bool
    ) -> None:
        own = [rpc.RRef(parameter) for parameter in local.parameters()]
        self._in_step = in_step
        self._optimizers = [
            DistributedOptimizer(choice.kind, parameters, **choice.arguments)
            for choice, parameters in ((remote, shards.parameters()), (optimizer, own))
        ]

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """Blocks until every weight is stepped."""
        for optimizer in self._optimizers:
            optimizer.step(context_id)
        if self._in_step:
            dist.barrier()

    def state(self) -> dict[str, torch.Tensor]:
        """Nothing: torch gives no access to it."""
        return {}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Nothing to put back."""
