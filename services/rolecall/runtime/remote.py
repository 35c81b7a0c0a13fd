# pyright: standard
"""Calls between the ranks of a gang, which are counted by the role of the called worker."""

import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import torch
from torch.distributed import rpc
from torch.distributed.rpc.constants import UNSET_RPC_TIMEOUT

from rolecall.runtime.context import span
from rolecall.runtime.measuring import measurements
from rolecall.runtime.shared_memory import shared
from rolecall.spec import metric
from rolecall.spec.errors import CallTimeout

_TIMED_OUT = "RPC ran for more than set timeout"  # torch raises a RuntimeError with this text
Request = TypeVar("Request")
Answer = TypeVar("Answer")


def call(
    to: str | rpc.WorkerInfo,
    function: Callable[..., Any],
    *arguments: Any,
    timeout: float = UNSET_RPC_TIMEOUT,
) -> torch.futures.Future[Any]:
    """Call a function on another worker, as `rpc.rpc_async` does. A timeout of 0 is none.

    Large tensors in the arguments, and in their tuples, lists and dictionaries, go through shared memory to workers of
    this machine.
    """
    sent, name = time.perf_counter(), to if isinstance(to, str) else to.name
    answer = rpc.rpc_async(to, function, args=shared(arguments, name), timeout=timeout)
    peer = name.rpartition("-")[0]
    measurements.add(metric.RPC_SENT, tensor_bytes(arguments), peer)
    answer.add_done_callback(lambda done: _count(done, sent, peer))
    return answer


def _count(answer: torch.futures.Future[Any], sent: float, peer: str) -> None:
    measurements.add(metric.RPC_CALLS, 1, peer)
    measurements.add(metric.RPC_SECONDS, time.perf_counter() - sent, peer)
    # Torch raises the error of the called function again, of any class, and logs it if it leaves a callback. The caller
    # gets it, too.
    with suppress(Exception):
        measurements.add(metric.RPC_RECEIVED, tensor_bytes(answer.value()), peer)


def tensor_bytes(value: Any) -> int:
    """The bytes of the tensors in a value and in its lists, tuples and dictionaries."""
    match value:
        case torch.Tensor():
            return value.nbytes if value.layout is torch.strided else 0
        case dict():
            return sum(map(tensor_bytes, value.values()))
        case list() | tuple():
            return sum(map(tensor_bytes, value))
        case _:
            return 0


class Mailbox(Generic[Request, Answer]):
    """Passes requests that arrive by RPC to the main thread.

    Training runs in the main thread, with the signals, the device and the process group. Therefore the RPC handler,
    decorated with `rpc.functions.async_execution`, only posts the request and returns a future.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Request, torch.futures.Future[Any]]] = queue.SimpleQueue()

    def post(self, request: Request) -> torch.futures.Future[Any]:
        """Post a request from an RPC thread; the future gets the answer of `answer_one`."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._requests.put((request, future))
        return future

    def answer_one(self, answer: Callable[[Request], Answer]) -> Answer:
        """Wait for a request in the main thread, answer it, and return the answer.

        An exception propagates here and not to the caller of the RPC: it ends this process, and the caller's error must
        be the loss of its peer, so that the consequence can't be taken for the cause.
        """
        with span("request", "wait"):
            request, future = self._requests.get()
        result = answer(request)
        future.set_result(result)
        return result


class StepBarrier(Generic[Request, Answer]):
    """Collects the shares of all ranks of a step, and gives all ranks the same answer.

    Decorate the RPC handler that calls `join` with `rpc.functions.async_execution`, and return its future through
    `passed_on`, so that no thread waits.
    """

    def __init__(self, size: int, settle: Callable[[list[Request]], Answer]) -> None:
        self._size = size
        self._settle = settle
        self._lock = threading.Lock()
        self._waiting: dict[int, dict[int, Request]] = {}
        self._futures: dict[tuple[int, int], torch.futures.Future[Any]] = {}
        """The answer to each rank in each step, until it is given; errors remain."""
        self._answered: dict[int, int] = {}
        """The last step of each rank that has its answer."""

    def join(self, step: int, rank: int, share: Request) -> torch.futures.Future[Any]:
        """Add the share of `rank` for `step`. The last share triggers `settle` with all shares, in the order of the
        ranks. All callers get its result or exception.
        """
        with self._lock:
            future = self._future(step, rank)
            arrived = self._waiting.setdefault(step, {})
            arrived[rank] = share
            if len(arrived) < self._size:
                return future
            shares = dict(sorted(self._waiting.pop(step).items()))
            answer, error = self._answer(list(shares.values()))
            futures = [self._futures[step, one] for one in shares]
            if error is None:
                self._answered |= dict.fromkeys(shares, step)
                for one in shares:
                    del self._futures[step, one]
        for one in futures:  # Without the lock, because callbacks may call `join`.
            if error is None:
                one.set_result(answer)
            else:
                one.set_exception(error)
        return future

    def after(self, step: int, rank: int) -> torch.futures.Future[Any]:
        """A future that completes with the answer to `rank` in `step`, also if its share arrives later; with None if
        it has had that answer, and with the error if it has had one. Each rank must join in the order of the steps.
        """
        with self._lock:
            if (step, rank) in self._futures or step > self._answered.get(rank, -1):
                return self._future(step, rank)
        answered: torch.futures.Future[Any] = torch.futures.Future()
        answered.set_result(None)
        return answered

    def _future(self, step: int, rank: int) -> torch.futures.Future[Any]:
        return self._futures.setdefault((step, rank), torch.futures.Future())

    def _answer(self, shares: list[Request]) -> tuple[Answer | None, Exception | None]:
        try:
            return self._settle(shares), None
        except Exception as error:  # noqa: BLE001 - all callers get it, or they would wait indefinitely
            return None, error


def passed_on(future: torch.futures.Future[Answer]) -> torch.futures.Future[Answer]:
    """The same future for the return from an `async_execution` function, with exceptions as errors.

    `Future.set_exception` stores the exception as the value, and RPC would send it as the call's result.
    """
    return future.then(lambda done: done.wait())


@contextmanager
def call_limit(timeout_s: float) -> Generator[None]:
    """Raise `CallTimeout`, which names `rpc.timeout_s`, for a call in the body that took longer than this parameter."""
    try:
        yield
    except RuntimeError as error:
        if _TIMED_OUT not in str(error):
            raise
        raise CallTimeout(
            f"an RPC call took longer than rpc.timeout_s = {timeout_s:g} seconds; set rpc.timeout_s to more than the "
            "longest step takes, or find out which worker is slow"
        ) from error
