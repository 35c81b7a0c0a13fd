"""The RPC pipeline tutorial's protocol, corrected: RRefs, distributed autograd, DistributedOptimizer.

https://docs.pytorch.org/tutorials/intermediate/dist_pipeline_parallel_tutorial.html. One distributed autograd context
per step has all micro-batches, with one backward call from all their losses (two calls in one context hang).
Micro-batches pass each stage in order, so that running statistics are deterministic. Optimizer state is in the stages
and not accessible.
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
from rolecall.workloads.resnet_pipeline.model_part import ModelPart
from rolecall.workloads.resnet_pipeline.params import Params

_Reference: TypeAlias = "rpc.RRef[torch.Tensor]"


class _TurnLock:
    """A lock that threads acquire in cyclic order: 0, 1, … `count` - 1, 0, …"""

    def __init__(self, count: int) -> None:
        self._count, self._next = count, 0
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, number: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
        try:
            yield
        finally:  # After an error, too: the other threads must finish before the master receives it.
            with self._changed:
                self._next = (number + 1) % self._count
                self._changed.notify_all()


class TutorialStage:
    """The stages' side. RPC threads call it within the step's distributed autograd context."""

    def __init__(self, part: ModelPart, micro_batches: int) -> None:
        self._part = part
        self._micro_batches = micro_batches
        self._turns = _TurnLock(micro_batches)

    def parameter_refs(self) -> list["rpc.RRef[torch.nn.Parameter]"]:
        """The parameters for the optimizer."""
        return [rpc.RRef(parameter) for parameter in self._part.blocks.parameters()]

    def set_batch(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """At the first stage, set the next batch: images [b, 3, s, s] and labels [b]."""
        self._images, self._labels = (part.chunk(self._micro_batches) for part in (images, labels))

    def images(self, micro_batch: int) -> torch.Tensor:
        """At the first stage, a micro-batch of images."""
        return self._images[micro_batch]

    def labels(self, micro_batch: int) -> torch.Tensor:
        """At the first stage, a micro-batch of labels."""
        return self._labels[micro_batch]

    def forward(self, micro_batch: int, features: _Reference) -> torch.Tensor:
        """The outputs; fetches the inputs from the stage that computed them."""
        inputs = features.to_here()
        with self._turns.turn(micro_batch):
            return self._part.compute(inputs)

    def loss(self, micro_batch: int, features: _Reference, labels: _Reference) -> torch.Tensor:
        """At the last stage, the micro-batch's contribution to the mean loss."""
        inputs, target = features.to_here(), labels.to_here()
        with self._turns.turn(micro_batch):
            return self._part.scaled_loss(self._part.compute(inputs), target).cpu()


class TutorialProtocol:
    """The master's side."""

    def __init__(self, params: Params, stages: Sequence["rpc.RRef[TutorialStage]"]) -> None:
        self._stages = stages
        self._micro_batches = params.micro_batches
        chosen = dense_optimizer(params.optimizer)
        parameters = [parameter for stage in stages for parameter in stage.rpc_sync().parameter_refs()]
        self._optimizer = DistributedOptimizer(chosen.kind, parameters, **chosen.arguments)

    def step(self) -> float:
        """One optimizer step on the batch of the first stage. Returns its mean loss."""
        with dist_autograd.context() as context_id:
            losses = torch.futures.wait_all([self._loss(number) for number in range(self._micro_batches)])
            dist_autograd.backward(context_id, losses)
            self._optimizer.step(context_id)
        return float(sum(loss.detach() for loss in losses))

    def _loss(self, micro_batch: int) -> "torch.futures.Future[torch.Tensor]":
        """Start the forward passes of a micro-batch; only references pass through this process."""
        first, last = self._stages[0], self._stages[-1]
        features = first.remote().images(micro_batch)
        for stage in self._stages[:-1]:
            features = stage.remote().forward(micro_batch, features)
        return last.rpc_async().loss(micro_batch, features, first.remote().labels(micro_batch))
