# pyright: standard
"""Tensors between stages by RPC, point to point, and the tutorial's protocol. A stage receives tensors by key, in any
order.
"""

import threading
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Literal, Self

import torch
from torch import nn
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.worker import call, current
from rolecall.workloads.resnet_pipeline.build import ModelPart
from rolecall.workloads.resnet_pipeline.params import Params

Kind = Literal["activation", "gradient", "labels"]
Key = tuple[Kind, int]
"""The kind of tensor, and its micro-batch."""


class Inbox:
    """Tensors from other stages that nobody has taken yet, for the main thread. Blocks no RPC thread."""

    def __init__(self) -> None:
        self._received: dict[Key, tuple[torch.Tensor, Future[None]]] = {}
        self._changed = threading.Condition()
        self._error: Exception | None = None

    def put(self, key: Key, tensor: torch.Tensor) -> Future[None]:
        """Called by RPC threads in any order; the future completes when the tensor is taken."""
        taken: Future[None] = Future()
        with self._changed:
            self._received[key] = tensor, taken
            self._changed.notify_all()
        return taken

    def take(self, key: Key) -> torch.Tensor:
        """Wait for the tensor with this key, also in several threads. Raises the error of a failed transfer."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._received or self._error is not None)
            if self._error is not None:
                raise self._error
            tensor, taken = self._received.pop(key)
        taken.set_result(None)
        return tensor

    def fail(self, error: Exception) -> None:
        """Called by RPC threads: end all waiting, because a stage that lacks a tensor sends none in return."""
        with self._changed:
            self._error = error
            self._changed.notify_all()


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
        delivery = call(self._name, deliver, (kind, micro_batch), sent)
        delivery.add_done_callback(_report_failure)
        self._pending.append(delivery)
        if max_pending is not None:
            self._wait(max_pending)

    def flush(self) -> None:
        """Wait until all tensors are taken; raises the errors of their transfer."""
        self._wait(0)

    def _wait(self, max_pending: int) -> None:
        while len(self._pending) > max_pending:
            self._pending.popleft().wait()


def _report_failure(delivery: Future[None]) -> None:
    try:
        delivery.value()
    except RuntimeError as error:
        inbox.fail(error)


# The protocol of PyTorch's RPC pipeline tutorial, in which all tensors start and end at the driver
# (https://docs.pytorch.org/tutorials/intermediate/dist_pipeline_parallel_tutorial.html).
#
# The driver creates a shard of the model on each stage (`rpc.remote`), sends micro-batches as RRefs of its own tensors,
# and gathers the outputs of the last shard. Distributed autograd and `DistributedOptimizer` do the rest. Micro-batches
# pass each shard in order, so that running statistics are deterministic. The optimizers' state stays in the stages and
# can't be saved.


class _Turns:
    """Lets threads compute one at a time, in the order of their numbers: 0, 1, …"""

    def __init__(self) -> None:
        self._next = 0
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, number: int) -> Generator[None]:
        """Wait for all smaller numbers; the next number follows even after an error."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
        try:
            yield
        finally:  # After an error, too: the other threads must finish before the driver receives it.
            with self._changed:
                self._next += 1
                self._changed.notify_all()


class TutorialShard:
    """A stage's part of the model, created by the driver. RPC threads call its methods."""

    def __init__(self, params: Params, classes: int, names: Sequence[str]) -> None:
        self.part = ModelPart(params, classes, names, current().device)
        self._turns = _Turns()

    def parameter_rrefs(self) -> list["rpc.RRef[nn.Parameter]"]:
        return [rpc.RRef(parameter) for parameter in self.part.blocks.parameters()]

    def train(self, mode: bool) -> None:
        """Training or evaluation mode; without gradients in the latter."""
        self.part.blocks.train(mode)

    def forward(self, turn: int, features: "rpc.RRef[torch.Tensor]") -> torch.Tensor:
        """The outputs, on the CPU; fetches the inputs from their owner. `turn` counts the calls from 0."""
        try:
            inputs = features.to_here()
        except BaseException:
            with self._turns.turn(turn):  # Later micro-batches must not wait for this one.
                raise
        with self._turns.turn(turn), torch.set_grad_enabled(self.part.blocks.training):
            return self.part.compute(inputs).cpu()


class RemotePipeline(nn.Module):
    """The whole model as the driver sees it: its shards in order, each on a stage."""

    def __init__(self, shards: Sequence["rpc.RRef[TutorialShard]"], micro_batch_size: int) -> None:
        super().__init__()
        self._shards, self._micro_batch_size = list(shards), micro_batch_size
        self._turn = 0  # micro-batches sent

    def parameter_rrefs(self) -> list["rpc.RRef[nn.Parameter]"]:
        """References to the parameters of all shards, for `DistributedOptimizer`."""
        return [parameter for shard in self._shards for parameter in shard.rpc_sync(timeout=0).parameter_rrefs()]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all shards, too."""
        torch.futures.wait_all([shard.rpc_async().train(mode) for shard in self._shards])
        return super().train(mode)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [b, 3, size, size] to outputs [b, classes]; the micro-batches overlap in the shards."""
        outputs = [self._send(micro_batch) for micro_batch in images.split(self._micro_batch_size)]
        return torch.cat(torch.futures.wait_all(outputs))

    def _send(self, images: torch.Tensor) -> "Future[torch.Tensor]":
        """Start the forward passes of a micro-batch, each of which waits for the one before it."""
        features = rpc.RRef(images)
        for shard in self._shards[:-1]:
            features = shard.remote().forward(self._turn, features)
        output = self._shards[-1].rpc_async().forward(self._turn, features)
        self._turn += 1
        return output
