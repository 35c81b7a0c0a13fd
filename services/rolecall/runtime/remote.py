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

        An exception of `answer` goes to the caller as well as up from here.
        """
        request, future = self._requests.get()
        try:
            result = answer(request)
        except Exception as error:
            future.set_exception(error)
            raise
        future.set_result(result)
        return result
