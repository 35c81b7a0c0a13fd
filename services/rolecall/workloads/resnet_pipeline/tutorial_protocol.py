"""The RPC pipeline tutorial's own way, made right: RRefs, distributed autograd, DistributedOptimizer.

https://docs.pytorch.org/tutorials/intermediate/dist_pipeline_parallel_tutorial.html. One distributed autograd context
per step holds all micro-batches, and one backward call starts from all their losses (two calls in one context hang).
Micro-batches pass a stage in turn, or running statistics would depend on chance. Optimizer state lives in the stages,
where nothing can read it.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

from rolecall.kit.optimizers import dense_optimizer
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.shard import Shard

_Reference: TypeAlias = "rpc.RRef[torch.Tensor]"


class _Turns:
    """Lets threads in one after another: 0, 1, … `count` - 1, 0, …"""

    def __init__(self, count: int) -> None:
        self._count, self._next = count, 0
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
        try:
            yield
        finally:  # An error, too, ends a turn: the others must come to theirs for the master to hear of it.
            with self._changed:
                self._next = (number + 1) % self._count
                self._changed.notify_all()


class TutorialShard:
    """A stage's side. Its calls come by RPC, each in a thread that is in the step's distributed autograd context."""

    def __init__(self, shard: Shard, micro_batches: int) -> None:
        self._shard = shard
        self._micro_batches = micro_batches
        self._turns = _Turns(micro_batches)

    def parameter_refs(self) -> list["rpc.RRef[torch.nn.Parameter]"]:
        """What the optimizer is to step."""
        return [rpc.RRef(parameter) for parameter in self._shard.blocks.parameters()]

    def hold(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """At the first stage: the batch of the next step, [b, 3, s, s] and [b]."""
        self._images, self._labels = (part.chunk(self._micro_batches) for part in (images, labels))

    def images(self, micro_batch: int) -> torch.Tensor:
        """At the first stage: a micro-batch."""
        return self._images[micro_batch]

    def labels(self, micro_batch: int) -> torch.Tensor:
        """At the first stage: a micro-batch's labels."""
        return self._labels[micro_batch]

    def forward(self, micro_batch: int, features: _Reference) -> torch.Tensor:
        """The outputs; fetches its input where that was computed."""
        inputs = features.to_here()
        with self._turns.turn(micro_batch):
            return self._shard.compute(inputs)

    def loss(self, micro_batch: int, features: _Reference, labels: _Reference) -> torch.Tensor:
        """At the last stage: the micro-batch's part of the mean loss."""
        inputs, target = features.to_here(), labels.to_here()
        with self._turns.turn(micro_batch):
            return self._shard.scaled_loss(self._shard.compute(inputs), target).cpu()


class TutorialProtocol:
    """The master's side."""

    def __init__(self, params: Params, shards: Sequence["rpc.RRef[TutorialShard]"]) -> None:
        self._shards = shards
        self._micro_batches = params.micro_batches
        chosen = dense_optimizer(params.optimizer)
        parameters = [parameter for shard in shards for parameter in shard.rpc_sync().parameter_refs()]
        self._optimizer = DistributedOptimizer(chosen.kind, parameters, **chosen.arguments)

    def step(self) -> float:
        """One optimizer step on the batch that the first stage holds; its mean loss."""
        with dist_autograd.context() as context_id:
            losses = torch.futures.wait_all([self._loss(number) for number in range(self._micro_batches)])
            dist_autograd.backward(context_id, losses)
            self._optimizer.step(context_id)
        return float(sum(loss.detach() for loss in losses))

    def _loss(self, micro_batch: int) -> "torch.futures.Future[torch.Tensor]":
        """Sends a micro-batch on its way: only references pass through this process."""
        first, last = self._shards[0], self._shards[-1]
        features = first.remote().images(micro_batch)
        for shard in self._shards[:-1]:
            features = shard.remote().forward(micro_batch, features)
        return last.rpc_async().loss(micro_batch, features, first.remote().labels(micro_batch))
