"""The threads that call the blob store. A store that hangs blocks only these threads."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from rolecall.master.storage_errors import StoreUnavailable, is_full
from rolecall.spec.errors import RolecallError

_THREADS = 16
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(eq=False, slots=True)
class _Call:
    function: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future[Any])
    begun: float = 0.0

    def run(self) -> None:
        try:
            result = self.function()
        except BaseException as error:  # noqa: BLE001 - the caller gets every error of the store's library
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class StoreThreads:
    """Runs blocking calls, each with a time limit, on a bounded number of daemon threads.

    Python can't end a thread, so a call that exceeds its limit is abandoned: it keeps its thread until it returns.
    While all threads are in that state, further calls fail at once. The threads are daemons because the interpreter
    waits for all others when it exits.
    """

    def __init__(
        self,
        store: str,
        timeout_s: float,
        threads: int = _THREADS,
        *,
        now: Callable[[], float] = time.monotonic,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`observe` gets the seconds of each call."""
        self._store = store
        self._timeout_s = timeout_s
        self._limit = threads
        self._now = now
        self._observe = observe
        self._threads = 0
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = Lock()
        self._running: set[_Call] = set()

    @property
    def hung(self) -> int:
        """The number of threads in a call that exceeds the time limit."""
        late = self._now() - self._timeout_s
        with self._lock:
            return sum(call.begun <= late for call in self._running)

    async def run(self, function: Callable[[], _T]) -> _T:
        """The result of `function`. Raises the errors of `wait`."""
        return await self.wait(self.submit(function))

    def submit(self, function: Callable[[], _T]) -> Future[_T]:
        """Call `function` as soon as a thread is free. Raises `StoreUnavailable` at once while all threads hang."""
        if self.hung >= self._limit:
            raise StoreUnavailable(
                f"{self._store} does not answer: {self._limit} calls take longer than {self._timeout_s:g} s; try again"
            )
        return self._put(_Call(function))

    async def wait(self, future: Future[_T]) -> _T:
        """The result of a submitted call.

        Raises `StoreUnavailable` when it exceeds the time limit or the store fails. `FileNotFoundError`, a full volume
        and our own errors pass through.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(future)
        except (FileNotFoundError, RolecallError):
            raise
        except Exception as error:  # fsspec's backends raise errors of their own libraries
            if isinstance(error, TimeoutError) and (future.cancelled() or not future.done()):
                late = f"{self._store} does not answer: a call took longer than {self._timeout_s:g} s; try again"
                raise StoreUnavailable(late) from None
            if is_full(error):
                raise
            raise StoreUnavailable(f"{self._store} fails: {type(error).__name__}: {error}; try again") from error

    def later(self, function: Callable[[], Any]) -> None:
        """Call `function` on a thread, and ignore its result."""
        self._put(_Call(function))

    def close(self) -> None:
        """End idle threads now, and the others after their calls."""
        with self._lock:
            threads, self._threads = self._threads, 0
        for _ in range(threads):
            self._queue.put(None)

    def _put(self, call: _Call) -> Future[Any]:
        with self._lock:
            if self._threads < self._limit:
                try:
                    Thread(target=self._work, name="blob-store", daemon=True).start()
                    self._threads += 1
                except RuntimeError as error:  # The system has no more threads. Those that run take the call.
                    if not self._threads:
                        raise StoreUnavailable(f"{self._store} can't be called: {error}; try again") from None
        self._queue.put(call)
        return call.future

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            if not call.future.set_running_or_notify_cancel():
                continue  # its caller no longer waits
            call.begun = self._now()
            with self._lock:
                self._running.add(call)
            call.run()
            self._observe(self._now() - call.begun)
            with self._lock:
                self._running.remove(call)
            del call  # its result can be large, or a file


class StoreFile(Generic[_T]):
    """The result of `opening`, used on the store's threads by one call at a time, and closed after the last call.

    So a file is closed even if the caller no longer waits for the call that opens or uses it.
    """

    def __init__(self, threads: StoreThreads, opening: Callable[[], _T]) -> None:
        self._threads = threads
        self._opening = threads.submit(opening)
        self._last: Future[Any] = self._opening

    async def opened(self) -> _T:
        """Wait until it is open. Raises the errors of `StoreThreads.wait`."""
        return await self._threads.wait(self._opening)

    async def run(self, function: Callable[[_T], _R]) -> _R:
        """The result of `function` for the opened file."""
        calling = self._threads.submit(lambda: function(self._opening.result()))
        self._last = calling
        return await self._threads.wait(calling)

    def close(self, closing: Callable[[_T], Any]) -> None:
        """Call `closing` on a thread after the last call, if it was opened."""
        self._last.add_done_callback(lambda _: self._threads.later(lambda: closing(self._opening.result())))
