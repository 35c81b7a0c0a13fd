"""The threads that work for users, apart from those that nodes and the master's loops need."""

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeAlias, TypeVar
from weakref import WeakValueDictionary

_P = ParamSpec("_P")
_T = TypeVar("_T")
Search: TypeAlias = Generator[None, None, _T]
"""A search in logs, which returns offsets. Each step reads one block."""


class UserThreads:
    """Runs blocking functions, such as the reading of one block of a log.

    A user has at most `each` at a time, so that a user who asks a lot delays only their own calls.
    """

    def __init__(self, name: str, threads: int = 4, each: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._each = each
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, user: str, function: Callable[_P, _T], *args: _P.args, **values: _P.kwargs) -> _T:
        """The result of `function`. If the caller is cancelled, its turn still lasts until the function ends."""
        turns, loop = self._turns.setdefault(user, asyncio.Semaphore(self._each)), asyncio.get_running_loop()

        def end(_: Future[_T]) -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(turns.release)

        await turns.acquire()
        try:
            call = self._pool.submit(function, *args, **values)
        except RuntimeError:
            turns.release()
            raise
        call.add_done_callback(end)
        return await asyncio.wrap_future(call)

    async def step(self, user: str, search: Search[_T]) -> _T | None:
        """Run the next step of a search; returns its result, or None if it is not at its end."""
        return await self.run(user, _step, search)

    async def result(self, user: str, search: Search[_T]) -> _T:
        while (found := await self.step(user, search)) is None:
            pass
        return found

    def close(self) -> None:
        """Start no further calls."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _step(search: Search[_T]) -> _T | None:
    try:
        next(search)
    except StopIteration as end:
        return end.value
    return None
