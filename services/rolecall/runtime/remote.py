"""Calls between the ranks of a gang."""

import queue
import threading
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


class StepBarrier(Generic[Request, Answer]):
    """One answer for several ranks that bring their shares of a step one by one.

    The RPC handler that calls `join` is to be decorated with `rpc.functions.async_execution`, and hands its future out
    by `passed_on`: no thread waits.
    """

    def __init__(self, size: int, settle: Callable[[list[Request]], Answer]) -> None:
        self._size = size
        self._settle = settle
        self._lock = threading.Lock()
        self._waiting: dict[int, dict[int, tuple[Request, torch.futures.Future[Any]]]] = {}

    def join(self, step: int, rank: int, share: Request) -> torch.futures.Future[Any]:
        """Bring `rank`'s share of `step`. With the last of them `settle` is given all, in the ranks' order and not in
        that of their arrival; what it returns or raises is everyone's.
        """
        future: torch.futures.Future[Any] = torch.futures.Future()
        with self._lock:
            arrived = self._waiting.setdefault(step, {})
            arrived[rank] = share, future
            if len(arrived) == self._size:
                self._answer([arrived[one] for one in sorted(self._waiting.pop(step))])
        return future

    def _answer(self, arrived: list[tuple[Request, torch.futures.Future[Any]]]) -> None:
        try:
            answer = self._settle([share for share, _ in arrived])
        except Exception as error:  # noqa: BLE001 - everyone must hear of it, or they would wait for ever
            for _, future in arrived:
                future.set_exception(error)
        else:
            for _, future in arrived:
                future.set_result(answer)


def passed_on(future: torch.futures.Future[Answer]) -> torch.futures.Future[Answer]:
    """The same, but fit for an `async_execution` function: its exception reaches the caller as an error.

    `Future.set_exception` keeps the exception as the value, and RPC would send it as the call's result.
    """
    return future.then(lambda done: done.wait())
