"""The update of all weights, most of which overlaps with the backward pass."""

import math

import torch
from torch import Tensor
from torch.futures import Future
from torch.optim import Optimizer

from rolecall.kit.optimizers import scale_gradients, scale_rates, squared_norm
from rolecall.kit.parameter_server import ServerOptimizers, Shard, ShardReference, Shards


class OverlappedUpdates(ServerOptimizers):
    """As `ServerOptimizers`, but each shard of `early` gets its gradients as soon as the backward pass has them.

    The servers then compute while the trainers are still in the backward pass. The gradients of the local weights are
    in `grad`, not in a distributed autograd context.
    """

    def __init__(
        self, early: Shards, late: Shards, rank: int, local: Optimizer, *, max_norm: float | None = None
    ) -> None:
        super().__init__(late, rank, local, max_norm=max_norm)
        self._early = early
        self._optimizer = local
        self._sent: list[Future[None]] | list[Future[float]] = []
        self._step, self._rate_factor = 0, 1.0

    def begin(self, step: int, rate_factor: float) -> None:
        """Begin a step, before its forward pass."""
        self._step, self._rate_factor = step, rate_factor
        self._sent.clear()
        self._optimizer.zero_grad()

    def send(self, shard: ShardReference, gradients: Tensor) -> None:
        """Send this trainer's gradients of a shard in `early`; called once for each in the backward pass."""
        if self._max_norm is None:
            self._sent.append(shard.join(Shard.apply, gradients, self._step, self._rank, self._rate_factor))
        else:
            self._sent.append(shard.join(Shard.gather, gradients, self._step, self._rank))

    def finish(self) -> list[Future[None]]:
        """Update all weights, after the backward pass. The next step may begin when the returned futures are
        complete."""
        if self._max_norm is None:
            applied = [*self._sent, *self._shards.apply(None, self._step, self._rank, self._rate_factor)]
        else:
            gathered = [*self._sent, *self._shards.gather(None, self._step, self._rank)]
            # Equal on all trainers, because DDP and the servers both average over trainers.
            norm = math.sqrt(squared_norm(self._parameters) + sum(torch.futures.wait_all(gathered)))
            scale = min(1.0, self._max_norm / (norm + 1e-6))
            applied = [
                one for to in (self._early, self._shards) for one in to.update(self._step, scale, self._rate_factor)
            ]
            scale_gradients(self._parameters, scale)
        scale_rates(self._optimizer, self._rate_factor)
        self._optimizer.step()
        return applied
