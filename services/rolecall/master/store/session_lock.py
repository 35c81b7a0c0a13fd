"""PostgreSQL's advisory lock, held by a separate session. The server releases it when the session ends."""

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.database import LIMITS, lock_engine

KEY = 0x726F6C65
LEASE_S = 15.0
"""Seconds of silence after which the server ends the session of a master that was stopped or disconnected."""
_APPLICATION_NAME = 63  # characters that PostgreSQL keeps
_HOLDER = """
    SELECT a.application_name, a.backend_start FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 0 AND l.objid = :key AND l.objsubid = 1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class SessionLock:
    """A lock whose holder must call `take` at least every `lease_s` seconds."""

    def __init__(self, url: str, owner: str, lease_s: float = LEASE_S) -> None:
        self._engine = lock_engine(url, LIMITS)
        self._settings = {
            "application_name": owner[:_APPLICATION_NAME],
            # Since PostgreSQL 14. In older versions, a master that is stopped but connected keeps its lock.
            "idle_session_timeout": f"{lease_s * 1000:.0f}ms",
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "3",
            "tcp_keepalives_count": "3",
        }
        self._session: AsyncConnection | None = None
        self.held = False

    async def take(self) -> bool:
        """Take the lock or renew its lease; return whether it is held.

        Raises SQLAlchemy's errors if the database does not answer, or the session has ended.
        """
        if self.held:
            await self._ask("SELECT :key")
        else:
            self.held = bool(await self._ask("SELECT pg_try_advisory_lock(:key)"))
        return self.held

    async def holder(self) -> str:
        """A description of the holder."""
        session = self._session or await self._connect()
        row = (await session.execute(text(_HOLDER), {"key": KEY})).one_or_none()
        if row is None:
            return "a master that has just ended"
        return f"{row.application_name or 'a master'} (connected to the database since {row.backend_start:%F %T %Z})"

    async def release(self) -> None:
        """End the session, which releases the lock."""
        self.held = False
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        await self._engine.dispose()

    async def _ask(self, question: str) -> object:
        session = self._session or await self._connect()
        try:
            return (await session.execute(text(question), {"key": KEY})).scalar_one()
        except (Exception, asyncio.CancelledError):
            # The state of the lock is unknown, so start again with a new session.
            self.held, self._session = False, None
            await session.invalidate()
            await session.close()
            raise

    async def _connect(self) -> AsyncConnection:
        session = await self._engine.connect()
        known = {name for (name,) in await session.execute(text("SELECT name FROM pg_settings"))}
        for name, value in self._settings.items():
            if name in known:
                await session.execute(text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
        self._session = session
        return session
