"""HTTP calls that an exception of a signal handler, such as Ctrl-C's, doesn't end halfway.

`httpcore` is not safe for such exceptions. One that is raised right after a lock was taken leaves the lock taken, so
that the next request waits forever. One that is raised while a request is sent leaves a connection that no request can
use. Python raises them in the main thread only, so that here other threads call `httpcore`.
"""

import _thread
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Generic, TypeVar, cast

import httpx

_T = TypeVar("_T")


def uninterrupted(function: Callable[[], _T]) -> _T:
    """The result of `function`. Ctrl-C ends only the wait for it: the call goes on in another thread."""
    return begin(function).result()


def begin(function: Callable[[], _T]) -> "_Call[_T]":
    """A call of `function` that has begun, and for which nobody needs to wait."""
    call = _Call(function)
    call.start()
    return call


def open_stream(send: Callable[[], httpx.Response]) -> httpx.Response:
    """The response of `send`, whose body the caller reads and closes. It is closed if Ctrl-C ends the wait for it."""
    call = _Call(send)
    try:
        call.start()
        return call.result()
    except BaseException:
        call.abandon(httpx.Response.close)
        raise


class _Call(Generic[_T]):
    """A call in another thread, for which the end of the program does not wait.

    Not a `threading.Thread` with a `concurrent.futures.Future`, because these aren't safe for exceptions of a signal
    handler either: it can get lost in a callback at the end of a thread, or leave a condition without its lock.
    """

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function
        self._value: _T | None = None
        self._error: BaseException | None = None
        self._has_ended = False
        self._end: SimpleQueue[None] = SimpleQueue()
        self._undo: SimpleQueue[Callable[[_T], None]] = SimpleQueue()

    def start(self) -> None:
        _thread.start_new_thread(self._run, ())

    def result(self) -> _T:
        """Wait for the end of the call. Returns its value or raises its error."""
        self._end.get()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return cast("_T", self._value)
        finally:
            del error  # It would refer to itself, by its traceback and this frame.

    def abandon(self, undo: Callable[[_T], None]) -> None:
        """Undo the call when it has ended, if it has a value."""
        self._undo.put(undo)
        if self._has_ended:
            self._try_undo()

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - the waiting thread gets it
            self._error = error
        self._has_ended = True
        self._end.put(None)
        self._try_undo()

    def _try_undo(self) -> None:
        if self._value is not None and self._undo.qsize():
            with suppress(Exception):  # Nobody waits for it.
                self._undo.get_nowait()(self._value)
