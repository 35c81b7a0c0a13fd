"""How tensors go from one stage to another: straight, by RPC, and taken in the receiver's own order."""

import threading
from collections import deque
from typing import Literal

import torch
from torch.distributed import rpc
from torch.futures import Future

Kind = Literal["activation", "gradient", "labels"]
Key = tuple[Kind, int]
"""What it is, and of which micro-batch."""


class Inbox:
    """What neighbours have sent and the main thread has not taken yet. No RPC thread waits here."""

    def __init__(self) -> None:
        self._held: dict[Key, tuple[torch.Tensor, Future[None]]] = {}
        self._changed = threading.Condition()

    def put(self, key: Key, tensor: torch.Tensor) -> Future[None]:
        """Called by an RPC thread, in any order; the future is done once the tensor is taken."""
        taken: Future[None] = Future()
        with self._changed:
            self._held[key] = tensor, taken
            self._changed.notify()
        return taken

    def take(self, key: Key) -> torch.Tensor:
        """Called by the main thread: wait for this very tensor, whatever else has come."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._held)
            tensor, taken = self._held.pop(key)
        taken.set_result(None)
        return tensor


inbox = Inbox()
"""This process's own."""


@rpc.functions.async_execution
def deliver(key: Key, tensor: torch.Tensor) -> Future[None]:
    """Called by another stage; done once this one has taken the tensor."""
    return inbox.put(key, _landed(tensor))


def _landed(tensor: torch.Tensor) -> torch.Tensor:
    """Fit for the main thread: on a GPU, RPC fills it on a stream of its own."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
        tensor.record_stream(torch.cuda.default_stream(tensor.device))
    return tensor


class Outbox:
    """The way to one other stage."""

    def __init__(self, name: str, *, takes_gpu: bool) -> None:
        self._name = name
        self._takes_gpu = takes_gpu
        self._under_way: deque[Future[None]] = deque()

    def send(self, kind: Kind, micro_batch: int, tensor: torch.Tensor, *, ahead: int | None = None) -> None:
        """Returns at once, or with `ahead` as soon as at most so many tensors are not taken."""
        sent = tensor if self._takes_gpu else tensor.cpu()
        self._under_way.append(rpc.rpc_async(self._name, deliver, args=((kind, micro_batch), sent)))
        if ahead is not None:
            self._await(ahead)

    def flush(self) -> None:
        """Wait until everything is taken; raises what went wrong on the way."""
        self._await(0)

    def _await(self, ahead: int) -> None:
        while len(self._under_way) > ahead:
            self._under_way.popleft().wait()
