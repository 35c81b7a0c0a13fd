# pyright: standard, reportPrivateImportUsage=false
"""Update protocols: apply a step's gradients to the weights in the trainer and on the parameter servers."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch.futures import Future
from torch.optim import Optimizer

from rolecall.kit.checkpoint import flatten_optimizer, restore_optimizer
from rolecall.kit.optimizers import OptimizerChoice, scale_gradients, scale_rates, set_gradients, squared_norm
from rolecall.kit.parameter_server.remote import ShardReference, Shards, Update
from rolecall.kit.parameter_server.shard import Shard


class UpdateProtocol(Protocol):
    """Applies the gradients of a step."""

    needs_context = True
    """True if the backward pass needs a distributed autograd context."""
    last_update: Update | None = None
    """The last update whose gradients are sent to the servers, so that they can reply to look-ups after it (see
    `ShardReference.pull`); None if they can't."""

    def begin(self, step: int, rate_factor: float) -> None:
        """Called before the forward pass of each step; does nothing by default."""

    @abstractmethod
    def apply(self, context_id: int | None, step: int, rate_factor: float) -> Sequence[Future[None]]:
        """Update the weights. Rows may be looked up again when the returned futures are complete.

        The gradients are those of a distributed autograd context. With None, they are those of pulled rows and, for
        local weights, in `grad`.
        """
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizer state in this trainer, for checkpoints; empty by default."""
        return {}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Restore `state`; `tensors` also has other entries."""


class ServerOptimizers(UpdateProtocol):
    """Optimizers on the servers update the shards; the optimizer `local`, if any, updates this trainer's weights.

    With `max_norm`, gradients are clipped as by torch's `clip_grad_norm_`, by their norm over all weights, local and
    remote. This needs synchronous shards.
    """

    def __init__(
        self, shards: Shards, rank: int, local: Optimizer | None = None, *, max_norm: float | None = None
    ) -> None:
        self._shards = shards
        self._all_shards: Sequence[Shards] = (shards,)
        self._sent: list[Future[Any]] = []
        """The replies of shards that get the step's gradients before `apply`."""
        self._rank = rank
        self._local = local
        self._max_norm = max_norm
        self._parameters = [one for group in local.param_groups for one in group["params"]] if local else []

    def apply(self, context_id: int | None, step: int, rate_factor: float) -> list[Future[None]]:
        """Updates the local weights while the servers update theirs."""
        if self._max_norm is None:
            applied = [*self._sent, *self._shards.apply(context_id, step, self._rank, rate_factor)]
            self.last_update = Update(step, self._rank)
            self._set_gradients(context_id)
        else:
            gathered = [*self._sent, *self._shards.gather(context_id, step, self._rank)]
            self._set_gradients(context_id)
            # Equal on all trainers, because DDP and the servers both average over trainers.
            norm = math.sqrt(squared_norm(self._parameters) + sum(torch.futures.wait_all(gathered)))
            scale = min(1.0, self._max_norm / (norm + 1e-6))
            applied = [one for shards in self._all_shards for one in shards.update(step, scale, rate_factor)]
            scale_gradients(self._parameters, scale)
        if self._local:
            scale_rates(self._local, rate_factor)
            self._local.step()
        return applied

    def _set_gradients(self, context_id: int | None) -> None:
        if context_id is not None:
            set_gradients(self._parameters, dist_autograd.get_gradients(context_id))

    def state(self) -> dict[str, torch.Tensor]:
        """State of the local optimizer; the servers save their own."""
        return flatten_optimizer(self._local) if self._local else {}

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        if self._local:
            restore_optimizer(self._local, tensors)


class OverlappedUpdates(ServerOptimizers):
    """As `ServerOptimizers`, but each shard of `early` gets its gradients as soon as the backward pass has them.

    The servers then compute while the trainers are still in the backward pass. The gradients of the local weights are
    in `grad`, not in a distributed autograd context.
    """

    needs_context = False

    def __init__(
        self, early: Shards, late: Shards, rank: int, local: Optimizer, *, max_norm: float | None = None
    ) -> None:
        super().__init__(late, rank, local, max_norm=max_norm)
        self._all_shards = (early, late)
        self._step, self._rate_factor = 0, 1.0

    def begin(self, step: int, rate_factor: float) -> None:
        self._step, self._rate_factor = step, rate_factor
        self._sent.clear()

    def send(self, shard: ShardReference, gradients: torch.Tensor) -> None:
        """Send this trainer's gradients of a shard in `early`; called once for each in the backward pass."""
        if self._max_norm is None:
            self._sent.append(shard.join(Shard.apply, gradients, self._step, self._rank, self._rate_factor))
        else:
            self._sent.append(shard.join(Shard.gather, gradients, self._step, self._rank))


class TutorialProtocol(UpdateProtocol):
    """As in the PyTorch tutorials: each trainer's DistributedOptimizer updates local and remote weights.

    Its state is in the processes that own the weights, once per trainer, and not accessible: a resumed attempt starts
    with fresh optimizer state, and learning rates are constant. With `in_step`, trainers start each step together:
    autograd raises an error if another trainer has changed a weight since the forward pass.
    """

    def __init__(
        self, parameters: Sequence[rpc.RRef[nn.Parameter]], optimizer: OptimizerChoice, *, in_step: bool
    ) -> None:
        self._in_step = in_step
        self._optimizer = DistributedOptimizer(optimizer.kind, list(parameters), **optimizer.remote_arguments)

    def apply(self, context_id: int | None, step: int, rate_factor: float) -> Sequence[Future[None]]:
        """Blocks until all weights are updated. Raises `ValueError` without a distributed autograd context."""
        if context_id is None:
            raise ValueError("torch's DistributedOptimizer needs a distributed autograd context")
        self._optimizer.step(context_id)
        if self._in_step:
            dist.barrier()
        return ()


class ProtocolsInTurn(UpdateProtocol):
    """Several `TutorialProtocol`s for different weights, applied one after the other."""

    def __init__(self, *protocols: TutorialProtocol) -> None:
        self._protocols = protocols

    def apply(self, context_id: int | None, step: int, rate_factor: float) -> Sequence[Future[None]]:
        """Blocks until all weights are updated."""
        return [one for protocol in self._protocols for one in protocol.apply(context_id, step, rate_factor)]


def parameter_references(module: nn.Module) -> list[rpc.RRef[nn.Parameter]]:
    """References to the weights of a module in this process, for `TutorialProtocol`."""
    return [rpc.RRef(parameter) for parameter in module.parameters()]
