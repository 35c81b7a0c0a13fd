"""Tensors between stages by RPC: point to point, or by the protocol of PyTorch's RPC pipeline tutorial.

A stage receives point-to-point tensors by key, in any order. The tutorial's protocol uses RRefs, distributed autograd
and `DistributedOptimizer` (https://docs.pytorch.org/tutorials/intermediate/dist_pipeline_parallel_tutorial.html), with
corrections: all micro-batches of a step share one autograd context and one backward call from all their losses, because
two calls in one context hang. Micro-batches pass each stage in order, so that running statistics are deterministic. The
optimizers' state stays in the stages and can't be saved.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, TypeAlias

import torch
import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch.futures import Future

from rolecall.kit.optimizers import dense_optimizer
from rolecall.workloads.resnet_pipeline.model_part import ModelPart
from rolecall.workloads.resnet_pipeline.params import Params

Kind = Literal["activation", "gradient", "labels"]
Key = tuple[Kind, int]
"""The kind of tensor, and its micro-batch."""
_Reference: TypeAlias = "rpc.RRef[torch.Tensor]"


class Inbox:
    """Tensors from other stages that the main thread has not taken yet. Blocks no RPC thread."""

    def __init__(self) -> None:
        self._received: dict[Key, tuple[torch.Tensor, Future[None]]] = {}
        self._changed = threading.Condition()

    def put(self, key: Key, tensor: torch.Tensor) -> Future[None]:
        """Called by RPC threads in any order; the future completes when the tensor is taken."""
        taken: Future[None] = Future()
        with self._changed:
            self._received[key] = tensor, taken
            self._changed.notify()
        return taken

    def take(self, key: Key) -> torch.Tensor:
        """Called by the main thread: wait for the tensor with this key."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._received)
            tensor, taken = self._received.pop(key)
        taken.set_result(None)
        return tensor


inbox = Inbox()
"""The inbox of this process."""


@rpc.functions.async_execution
def deliver(key: Key, tensor: torch.Tensor) -> Future[None]:
    """Called by other stages; completes when this stage has taken the tensor."""
    if tensor.is_cuda:  # RPC receives it on a separate stream, and the main thread uses it on the default one.
        torch.cuda.current_stream(tensor.device).synchronize()
        tensor.record_stream(torch.cuda.default_stream(tensor.device))
    return inbox.put(key, tensor)


class Outbox:
    """Sends tensors to one other stage."""

    def __init__(self, name: str, *, accepts_gpu: bool) -> None:
        self._name = name
        self._accepts_gpu = accepts_gpu
        self._pending: deque[Future[None]] = deque()

    def send(self, kind: Kind, micro_batch: int, tensor: torch.Tensor, *, max_pending: int | None = None) -> None:
        """Returns at once, or with `max_pending` when at most that many sent tensors are not yet taken."""
        sent = tensor if self._accepts_gpu else tensor.cpu()
        self._pending.append(rpc.rpc_async(self._name, deliver, args=((kind, micro_batch), sent)))
        if max_pending is not None:
            self._wait(max_pending)

    def flush(self) -> None:
        """Wait until all tensors are taken; raises the errors of their transfer."""
        self._wait(0)

    def _wait(self, max_pending: int) -> None:
        while len(self._pending) > max_pending:
            self._pending.popleft().wait()


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


class TutorialPipeline:
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

    def _loss(self, micro_batch: int) -> Future[torch.Tensor]:
        """Start the forward passes of a micro-batch; only references pass through this process."""
        first, last = self._stages[0], self._stages[-1]
        features = first.remote().images(micro_batch)
        for stage in self._stages[:-1]:
            features = stage.remote().forward(micro_batch, features)
        return last.rpc_async().loss(micro_batch, features, first.remote().labels(micro_batch))
