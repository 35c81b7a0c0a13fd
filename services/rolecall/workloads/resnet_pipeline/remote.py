"""Tensors between stages by RPC, point to point. A stage receives them by key, in any order."""

import threading
from collections import deque
from typing import Literal

import torch
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.worker import call

Kind = Literal["activation", "gradient", "labels"]
Key = tuple[Kind, int]
"""The kind of tensor, and its micro-batch."""


class Inbox:
    """Tensors from other stages that the main thread has not taken yet. Blocks no RPC thread."""

    def __init__(self) -> None:
        self._received: dict[Key, tuple[torch.Tensor, Future[None]]] = {}
        self._changed = threading.Condition()
        self._error: Exception | None = None

    def put(self, key: Key, tensor: torch.Tensor) -> Future[None]:
        """Called by RPC threads in any order; the future completes when the tensor is taken."""
        taken: Future[None] = Future()
        with self._changed:
            self._received[key] = tensor, taken
            self._changed.notify()
        return taken

    def take(self, key: Key) -> torch.Tensor:
        """Called by the main thread: wait for the tensor with this key; raises the error of a failed transfer."""
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
            self._changed.notify()


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
