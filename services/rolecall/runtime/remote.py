"""Calls between the ranks of a gang."""

import queue
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

Request = TypeVar("Request")
Answer = TypeVar("Answer")


class Mailbox(Generic[Request, Answer]):
    """One request that comes by RPC and is served by the main thread.

    Training belongs to the main thread: signals, the device and the process group live there. So the RPC handler (to be
    decorated with `rpc.functions.async_execution`) only posts the request and hands out a future.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Request, torch.futures.Future[Any]]] = queue.SimpleQueue()

    def post(self, request: Request) -> torch.futures.Future[Any]:
        """Called by an RPC thread: the future holds what `serve` answers."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._requests.put((request, future))
        return future

    def serve(self, answer: Callable[[Request], Answer]) -> Answer:
        """Called by the main thread: wait for the request, answer it, and tell the caller.

        An exception goes up from here and not to the caller: this process is about to end with it, and the caller's
        error must say that its peer is gone, or the consequence could be taken for the cause.
        """
        request, future = self._requests.get()
        result = answer(request)
        future.set_result(result)
        return result


def passed_on(future: torch.futures.Future[Answer]) -> torch.futures.Future[Answer]:
    """The same, but fit for an `async_execution` function: its exception reaches the caller as an error.

    `Future.set_exception` keeps the exception as the value, and RPC would send it as the call's result.
    """
    return future.then(lambda done: done.wait())
