"""Leader election: at most one of several masters leads.

A leader holds two locks: one on the data folder and, with PostgreSQL, one in a session of the database. Locks alone
don't suffice, because a process that is stopped can lose a lock and continue later. So every leader begins a *term*,
and every transaction that writes first checks that its term is still the current one (`store/terms.py`).
"""

import asyncio
import fcntl
import logging
import os
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO

from sqlalchemy.exc import SQLAlchemyError

from rolecall.logs import OncePerReason, about
from rolecall.master.clock import Clock
from rolecall.master.storage_errors import ErrorLog, LeadershipLost, is_full, storage_error
from rolecall.master.store import terms
from rolecall.master.store.database import Database, is_sqlite
from rolecall.master.store.session_lock import SessionLock
from rolecall.settings.master import MasterSettings
from rolecall.spec.errors import SettingsError

LOOK_EVERY_S = 0.5
BEAT_S = 2.0
_LOG = logging.getLogger(__name__)


class Leadership:
    """The right to be the only master of this data folder and this database."""

    def __init__(self, settings: MasterSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._me = f"process {os.getpid()} on {socket.gethostname()}"
        self._folder = FolderLock(settings.data / "master.lock")
        url = settings.database_url.get_secret_value() if settings.database_url else None
        self._session = SessionLock(url, f"rolecall {self._me}") if url and not is_sqlite(url) else None
        self._errors = ErrorLog()

    async def take(self, waits: Callable[[], object]) -> None:
        """Return when no other master leads; calls `waits` while one does.

        Raises `SettingsError` if one still leads after `ROLECALL_NODE_TIMEOUT_S`, which is enough time for a
        predecessor that is exiting. With `ROLECALL_STANDBY`, waits indefinitely.
        """
        begun, reasons = self._clock.monotonic(), OncePerReason()
        while (other := await self._other_leader()) is not None:
            waits()
            if other and reasons.is_new(other):
                _LOG.warning("standing by: %s", other, extra=about("standing_by"))
            must_lead = other and not self._settings.standby
            if must_lead and self._clock.monotonic() - begun > self._settings.node_timeout_s:
                raise SettingsError(f"{other}; end that one, or start this one with ROLECALL_STANDBY=1 and PostgreSQL")
            await asyncio.sleep(LOOK_EVERY_S)

    async def begin(self, database: Database) -> int:
        """Begin a term, and restrict the writes of `database` to it. Returns its number.

        A predecessor that was stopped in a transaction keeps its term until the server ends the transaction.
        """
        while True:
            try:
                async with database.write() as connection:
                    term = await terms.begin(connection, self._me, self._clock.now())
            except SQLAlchemyError as error:
                self._log_storage_error("taking the lead", error)
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                database.fence(term)
                self._errors.recovered("taking the lead")
                _LOG.info("%s leads in term %d", self._me, term, extra=about("term_began"))
                return term

    async def watch(self, database: Database, term: int) -> None:
        """Keep the lead until `LeadershipLost`. While the database is unavailable, no other master can take it."""
        while True:
            await asyncio.sleep(BEAT_S)
            try:
                if self._session is not None:
                    await self._session.take()
                async with database.read() as connection:
                    current = await terms.current(connection)
            except SQLAlchemyError as error:
                self._log_storage_error("holding the lead", error)
                continue
            self._errors.recovered("holding the lead")
            if current != term:
                raise LeadershipLost(f"another master leads in term {current}; this one led in term {term}")

    async def release(self) -> None:
        self._folder.release()
        if self._session is not None:
            await self._session.release()

    async def _other_leader(self) -> str | None:
        """A description of the other leader; None if there is none, empty while the database doesn't answer."""
        if self._session is not None:
            try:
                if not await self._session.take():
                    return f"another master leads on this database: {await self._session.holder()}"
            except SQLAlchemyError as error:
                self._log_storage_error("taking the lead", error)
                return ""
        if not self._folder.take(self._me, self._clock.now()):
            return f"another master leads in ROLECALL_DATA={self._settings.data}: {self._folder.holder()}"
        return None

    def _log_storage_error(self, what: str, error: SQLAlchemyError) -> None:
        """Log a storage error once; raise any other error."""
        if storage_error(error) is None:
            raise error
        self._errors.failed(what, error)


class FolderLock:
    """A lock on a file that describes its holder. The kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def take(self, owner: str, now: datetime) -> bool:
        """Try to take the lock; return whether it is held. Raises `SettingsError` if files can't be locked."""
        if self._file is not None:
            return True
        try:
            file = self._path.open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                raise
        except BlockingIOError:
            return False
        except OSError as error:
            full = is_full(error)
            remedy = "free some space there" if full else "give a folder whose files can be written and locked"
            raise SettingsError(f"ROLECALL_DATA: {self._path}: {error.strerror}; {remedy}") from None
        self._file = file
        file.truncate(0)
        file.write(f"{owner}, since {now:%F %T} UTC\n")
        file.flush()
        return True

    def holder(self) -> str:
        """The holder's description of itself."""
        return self._path.read_text(errors="replace").strip() or "a master that has just started"

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
