"""Validation of requests outside the event loop, each within a deadline.

A check runs a workload's own validators: code of a plug-in, on values of a user. It can take long, loop or sleep. So it
gets a thread and a deadline, and each workload has few threads. Neither a user nor a plug-in can block the master or
other workloads. A thread doesn't protect against code that never releases the interpreter, such as a regular
expression of Python's `re` that backtracks for minutes.
"""

import asyncio
import ctypes
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rolecall.logs import about
from rolecall.master.catalogue import Catalogue
from rolecall.spec.errors import BrokenWorkload, CheckTimeout, RolecallError
from rolecall.spec.job import JobRequest

DEADLINE_S = 2.0
"""Seconds from the request's arrival to the end of its check, including the wait for a thread."""
AT_ONCE = 2
"""The number of concurrent checks of one workload. A valid request takes milliseconds."""
_INTERRUPT_EVERY_S = 0.1
_LOG = logging.getLogger(__name__)


class _Overdue(BaseException):
    """Raised in a check whose deadline has passed. A plug-in's `except Exception` doesn't catch it."""


class RequestChecks:
    """The running checks, and those that wait for a thread."""

    def __init__(self, catalogue: Catalogue, deadline_s: float = DEADLINE_S) -> None:
        self._catalogue = catalogue
        self._deadline_s = deadline_s
        self._slots = {name: asyncio.Semaphore(AT_ONCE) for name in catalogue.workloads}

    async def run(self, request: JobRequest) -> dict[str, Any]:
        """The complete and validated fields of the job's spec.

        Raises `InvalidJob` with the problems, `CheckTimeout` after the deadline, and `BrokenWorkload` if a plug-in
        raised another error.
        """
        slots = self._slots.get(request.workload)
        if slots is None:
            return self._catalogue.check_request(request)  # raises `InvalidJob` with the known workloads
        check: _Check | None = None
        try:
            async with asyncio.timeout(self._deadline_s):
                await slots.acquire()
                try:
                    check = _Check(lambda: self._catalogue.check_request(request), request.workload, slots.release)
                except BaseException:  # Its thread can't start.
                    slots.release()
                    raise
                return await check.outcome
        except TimeoutError:
            if check is not None and not check.outcome.cancelled():
                return check.outcome.result()  # It ended in time, but a stalled loop learned of it late.
            raise CheckTimeout(self._late(request.workload, running=check is not None)) from None
        finally:
            if check is not None:
                check.interrupt()

    def _late(self, workload: str, *, running: bool) -> str:
        if not running:
            return f"the master is busy with {AT_ONCE} other checks of {workload} jobs; try again in a moment"
        return (
            f"the check of this {workload} job did not end within {self._deadline_s:g} s and was stopped; "
            "send fewer or smaller values, or try again when the master has less work"
        )


class _Check:
    """One check in its own thread. The thread is a daemon, so that the master can exit while it hangs."""

    def __init__(self, check: Callable[[], dict[str, Any]], workload: str, release: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._check, self._workload, self._release = check, workload, release
        self._guard, self._over, self._released = threading.Lock(), False, False
        self.outcome: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=f"check-{workload}", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """End the check as soon as it runs Python code again. Until then it keeps its slot.

        Repeats until the thread has ended: the interpreter drops what is raised in a destructor or in the callback of
        a weak reference, and the check may handle it.
        """
        if not self._thread.is_alive():
            self._release_once()  # The exception may have ended the thread just before it would have done so.
        if self._released:
            return
        with self._guard:
            if not self._over and self._thread.ident is not None:
                raised = ctypes.py_object(_Overdue)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), raised)
        self._loop.call_later(_INTERRUPT_EVERY_S, self.interrupt)

    def _run(self) -> None:
        fields: dict[str, Any] = {}
        error: BaseException | None = None
        try:
            try:
                fields = self._check()
            finally:
                with self._guard:
                    self._over = True
        except BaseException as raised:  # noqa: BLE001 - foreign code may raise anything, and must not end its caller
            error = raised
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._settle, fields, error)

    def _release_once(self) -> None:
        if not self._released:
            self._released = True
            self._release()

    def _settle(self, fields: dict[str, Any], error: BaseException | None) -> None:
        self._release_once()
        if self.outcome.done():
            return  # the caller no longer waits
        if error is None:
            self.outcome.set_result(fields)
        elif isinstance(error, RolecallError):
            self.outcome.set_exception(error)
        else:
            message = "the check of workload %s is broken"
            _LOG.error(message, self._workload, exc_info=error, extra=about("workload_check_broken"))
            what = f"the check of workload {self._workload} is broken ({type(error).__name__}: {error})"
            self.outcome.set_exception(BrokenWorkload(f"{what}; the master's log has the traceback for its author"))
