"""Errors of the master's storage, explained for the caller and for the log."""

import errno
import logging
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rolecall.logs import OncePerReason, about
from rolecall.spec.errors import Conflict, RolecallError

_FULL = "the master's volume (ROLECALL_DATA, or the database's) is full: nothing was stored; free some space, try again"
# Parts of the messages of SQLite and PostgreSQL.
_FULL_DATABASE = re.compile("disk is full|No space left on device")
_LOCKED = re.compile("database is locked|lock timeout")
_LOG = logging.getLogger(__name__)


class StoreUnavailable(RolecallError):
    """The blob store fails or does not answer in time; the same call may succeed later."""


class LeadershipLost(RolecallError):
    """Another master leads the cluster: what this one decides no longer counts."""


@dataclass(frozen=True, slots=True)
class StorageError:
    """The reason why the storage could not serve a valid request."""

    detail: str
    full: bool
    """True if the volume is full; False if the database or the blob store doesn't answer."""


def storage_error(error: BaseException) -> StorageError | None:
    """The storage error behind `error`, or None if it has another cause."""
    if is_full(error):
        return StorageError(_FULL, full=True)
    if isinstance(error, StoreUnavailable | LeadershipLost):
        return StorageError(str(error), full=False)
    if isinstance(error, PoolTimeout):
        waits = "all connections to the database have been in use for too long; it is slow, locked or overloaded"
        return StorageError(f"{waits}; try again", full=False)
    # When PostgreSQL ends a session, the error has another class, but invalidates the connection.
    if isinstance(error, OperationalError | InterfaceError) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    ):
        text = " ".join(str(error.orig).split())
        state = "is locked by another transaction for too long" if _LOCKED.search(text) else "does not answer"
        return StorageError(f"the database {state}: {text}; try again", full=False)
    return None


def is_full(error: BaseException) -> bool:
    """Return whether the error means that a volume is full."""
    if isinstance(error, DBAPIError):
        return _FULL_DATABASE.search(str(error.orig)) is not None
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


class ErrorLog:
    """Logs the failures of steps: each reason once, and the recovery."""

    def __init__(self) -> None:
        self._reasons = OncePerReason()

    def failed(self, step: str, error: Exception, job: str | None = None) -> None:
        """Log the failure of `step`, with a traceback unless the storage is the cause."""
        if self._reasons.is_new(reason := describe(error), step):
            exc_info = error if storage_error(error) is None else None
            _LOG.error("%s failed, retrying: %s", step, reason, exc_info=exc_info, extra=about("step_failed", job=job))

    def recovered(self, step: str, job: str | None = None) -> None:
        """Log that `step` succeeded, if it has failed before."""
        if self._reasons.end(step):
            _LOG.info("%s recovered", step, extra=about("step_recovered", job=job))

    async def attempt(self, name: str, step: Awaitable[bool], job: str | None = None) -> bool:
        """Return the result of `step`, or False if it fails: then it must not block other steps, and is retried."""
        try:
            taken = await step
        except Conflict as conflict:
            # A call committed first, and has requested the next pass.
            _LOG.debug("%s was overtaken: %s", name, conflict, extra=about("step_overtaken", job=job))
        except Exception as error:  # noqa: BLE001 - each step is a tick of its own
            self.failed(name, error, job)
        else:
            self.recovered(name, job)
            return taken
        return False


class Pulse:
    """The passes of a loop: the time of the last successful one, and the error since then."""

    def __init__(self, step: str, now: Callable[[], float]) -> None:
        self._step = step
        self._now = now
        self._last = now()
        self._error = ""
        self._errors = ErrorLog()
        self.passes, self.busy_s = 0, 0.0
        """Successful passes, and the seconds that they took."""
        self.succeeded = False
        """True if the pass succeeds. One that leaves something to do, but raises no error, sets it to False."""

    @contextmanager
    def next_pass(self) -> Generator[None]:
        """The next pass of the loop, in the block. An error is logged once, and does not end the loop."""
        begun, self.succeeded = self._now(), True
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one failed pass must not end the loop: the next one tries again
            self.succeeded = False
            self._errors.failed(self._step, error)
            self._error = describe(error)
        else:
            self._errors.recovered(self._step)
        if self.succeeded:
            self._last, self._error = self._now(), ""
            self.passes += 1
            self.busy_s += self._last - begun

    @property
    def silent_s(self) -> float:
        """Seconds since the last successful pass, or since the start."""
        return self._now() - self._last

    def failure(self, patience_s: float) -> str | None:
        """The reason why the loop had no successful pass for `patience_s` seconds, or None if it had one."""
        silent_s = self.silent_s
        if silent_s <= patience_s:
            return None
        why = self._error or "the current one has not finished"
        return f"{self._step}: no pass succeeded for {silent_s:.0f} s: {why}"


def describe(error: Exception) -> str:
    """A short description: of the storage error if there is one, otherwise of `error` itself."""
    storage = storage_error(error)
    # Only the driver's message of a database error, because the values of the statement differ each time.
    message = error.orig if isinstance(error, DBAPIError) else error
    return storage.detail if storage else f"{type(error).__name__}: {message}"
