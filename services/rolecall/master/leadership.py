"""Which of several masters leads: one, ever.

Two locks say who: one on the data folder and, with PostgreSQL, one that a session of the database holds. Locks alone
don't suffice, because who holds one may be stopped, lose it, and go on. So every leader begins a *term*, and every
transaction that writes looks first whether its term is still the current one (`store/terms.py`).
"""

import asyncio
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO

from sqlalchemy.exc import SQLAlchemyError

from rolecall.edge.logs import about
from rolecall.master.clock import Clock
from rolecall.master.storage_errors import ErrorLog, LeadershipLost, storage_error
from rolecall.master.store import terms
from rolecall.master.store.database import Database, is_sqlite
from rolecall.master.store.session_lock import SessionLock
from rolecall.settings import MasterSettings
from rolecall.spec.errors import SettingsError

LOOK_EVERY_S = 0.5
BEAT_S = 2.0
_log = logging.getLogger(__name__)


class Leadership:
    """The right to be the one master of this data folder and this database."""

    def __init__(self, settings: MasterSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._me = f"process {os.getpid()} on {socket.gethostname()}"
        self._folder = FolderLock(settings.data / "master.lock")
        url = settings.database_url.get_secret_value() if settings.database_url else None
        self._session = SessionLock(url, f"rolecall {self._me}") if url and not is_sqlite(url) else None
        self._errors = ErrorLog()

    async def take(self, waits: Callable[[], object]) -> None:
        """Return when no other master leads; `waits` is called as long as one does.

        Raises `SettingsError` if one still leads after `ROLECALL_NODE_TIMEOUT_S`, which is time enough for a
        predecessor that is ending. With `ROLECALL_STANDBY` it waits for ever.
        """
        begun, known = self._clock.monotonic(), ""
        while (other := await self._other_leader()) is not None:
            waits()
            if other and other != known:
                _log.warning("standing by: %s", other, extra=about("standing_by"))
            known = other or known
            patient = self._settings.standby or not other
            if not patient and self._clock.monotonic() - begun > self._settings.node_timeout_s:
                raise SettingsError(f"{other}; end that one, or start this one with ROLECALL_STANDBY=1 and PostgreSQL")
            await asyncio.sleep(LOOK_EVERY_S)

    async def begin(self, database: Database) -> int:
        """Begin a term, and let `database` write in no other. Returns its number.

        A predecessor that was stopped within a transaction keeps the term until the server ends that transaction.
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
                _log.info("%s leads in term %d", self._me, term, extra=about("term_began"))
                return term

    async def watch(self, database: Database, term: int) -> None:
        """Hold the lead until `LeadershipLost`. While the database is away nobody else can take it either."""
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
        """Let another master lead."""
        self._folder.release()
        if self._session is not None:
            await self._session.release()

    async def _other_leader(self) -> str | None:
        """Who keeps this master from the lead, in words; empty while the database does not say, None if nobody does."""
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
        """Log that the database is in trouble, once; raise what is no such trouble."""
        if storage_error(error) is None:
            raise error
        self._errors.failed(what, error)


class FolderLock:
    """A lock on a file, which the kernel frees when this process ends; the file says who holds it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def take(self, owner: str, now: datetime) -> bool:
        """Whether the lock is ours now. Raises `SettingsError` where files can't be locked."""
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
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            remedy = "free some space there" if full else "give a folder whose files can be written and locked"
            raise SettingsError(f"ROLECALL_DATA: {self._path}: {error.strerror}; {remedy}") from None
        self._file = file
        file.truncate(0)
        file.write(f"{owner}, since {now:%F %T} UTC\n")
        file.flush()
        return True

    def holder(self) -> str:
        """What the holder wrote about itself."""
        return self._path.read_text(errors="replace").strip() or "a master that has just started"

    def release(self) -> None:
        """Free the lock."""
        if self._file is not None:
            self._file.close()
            self._file = None
