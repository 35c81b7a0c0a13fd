"""Threads for calls that can hang, for example in a network file system."""

import asyncio
import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_daemon_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread that delays the exit of neither the event loop nor the process.

    Unlike `asyncio.to_thread`, it does not pass on context variables. Raises `OSError` as `start_in_daemon_thread`.
    """
    return await asyncio.wrap_future(start_in_daemon_thread(function, *args, **kwargs))


def start_in_daemon_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Start a function in a thread that does not delay the exit of the process; return its future result.

    Raises `OSError` if no thread can start, because a job has used up those of the machine.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)

    future.set_running_or_notify_cancel()  # A running call can't be cancelled, only the wait for it.
    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    return future


def call_aside(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Start a function in a thread, as `start_in_daemon_thread`, whose end nobody waits for; call it here if no thread
    can start."""
    try:
        start_in_daemon_thread(function, *args, **kwargs)
    except OSError:
        function(*args, **kwargs)
