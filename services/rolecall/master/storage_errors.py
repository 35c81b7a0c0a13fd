"""Errors of the master's storage, explained for the caller and for the log."""

import errno
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rolecall.edge.logs import about
from rolecall.spec.errors import Conflict, RolecallError

_FULL = "the master's volume (ROLECALL_DATA, or the database's) is full: nothing was stored; free some space, try again"
# As SQLite and PostgreSQL say it.
_FULL_DATABASE = re.compile("disk is full|No space left on device")
_LOCKED = re.compile("database is locked|lock timeout")
_log = logging.getLogger(__name__)


class StoreUnavailable(RolecallError):
    """The blob store fails or does not answer in time; the same call may succeed later."""


class LeadershipLost(RolecallError):
    """Another master leads the cluster: what this one decides no longer counts."""


@dataclass(frozen=True, slots=True)
class StorageError:
    """Why something could not be read or stored, though nothing is wrong with what was asked."""

    detail: str
    full: bool
    """Whether space is wanting; else the database or the blob store does not answer."""


def storage_error(error: BaseException) -> StorageError | None:
    """What `error` says of the storage; None if it tells of something else."""
    if is_full(error):
        return StorageError(_FULL, full=True)
    if isinstance(error, StoreUnavailable | LeadershipLost):
        return StorageError(str(error), full=False)
    if isinstance(error, PoolTimeout):
        waits = "all connections to the database have been in use for too long; it is slow, locked or overloaded"
        return StorageError(f"{waits}; try again", full=False)
    if isinstance(error, DBAPIError) and _is_away(error):
        return StorageError(f"the database {_explain_driver_error(error)}; try again", full=False)
    return None


def is_full(error: BaseException) -> bool:
    """Whether the error says that a volume has no space left."""
    if isinstance(error, DBAPIError):
        return _FULL_DATABASE.search(str(error.orig)) is not None
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


def _is_away(error: DBAPIError) -> bool:
    # PostgreSQL's words when it ends a session, e.g. an idle one, are neither of the two kinds.
    return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated


def _explain_driver_error(error: DBAPIError) -> str:
    words = " ".join(str(error.orig).split())
    if _LOCKED.search(words):
        return f"is locked by another transaction for too long: {words}"
    return f"does not answer: {words}"


class ErrorLog:
    """Logs a repeated failure once: again when its reason changes, and when it is over."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def failed(self, what: str, error: Exception, job: str | None = None) -> None:
        """`what` ended with `error`: a line if it is the storage's fault, a traceback if it may be ours."""
        reason = describe(error)
        if self._reasons.get(what) == reason:
            return
        self._reasons[what] = reason
        exc_info = error if storage_error(error) is None else None
        _log.error("%s failed, retrying: %s", what, reason, exc_info=exc_info, extra=about("step_failed", job=job))

    def recovered(self, what: str, job: str | None = None) -> None:
        """`what` succeeded."""
        if self._reasons.pop(what, None) is not None:
            _log.info("%s recovered", what, extra=about("step_recovered", job=job))

    async def attempt(self, what: str, step: Awaitable[bool], job: str | None = None) -> bool:
        """Whether the step was taken. One that fails must not hold others back: it is tried again next time."""
        try:
            taken = await step
        except Conflict as conflict:
            # By a call, which has asked for the next pass.
            _log.debug("%s was overtaken: %s", what, conflict, extra=about("step_overtaken", job=job))
        except Exception as error:  # noqa: BLE001 - each step is a tick of its own
            self.failed(what, error, job)
        else:
            self.recovered(what, job)
            return taken
        return False


class Pulse:
    """When a loop last went well, and why it has not since."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._last = now()
        self._error = ""

    def succeeded(self) -> None:
        """A pass ended well."""
        self._last, self._error = self._now(), ""

    def failed(self, error: Exception) -> None:
        """A pass ended with `error`."""
        self._error = describe(error)

    @property
    def silent_s(self) -> float:
        """Seconds since a pass went well, or since the start."""
        return self._now() - self._last

    def failure(self, patience_s: float) -> str | None:
        """What keeps the loop from passing, if it has not passed for `patience_s` seconds."""
        silent_s = self.silent_s
        if silent_s <= patience_s:
            return None
        return f"no pass succeeded for {silent_s:.0f} s: {self._error or 'the current one has not finished'}"


def describe(error: Exception) -> str:
    """What `error` says of the storage, or else of itself, in one line or few."""
    storage = storage_error(error)
    return storage.detail if storage else f"{type(error).__name__}: {_own_text(error)}"


def _own_text(error: Exception) -> str:
    """What a database's driver says, without the statement and its ever changing values."""
    return str(error.orig if isinstance(error, DBAPIError) else error)
