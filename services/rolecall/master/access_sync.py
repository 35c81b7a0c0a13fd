"""Synchronization of the tokens in memory with the database, which several masters can share."""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy.exc import DataError

from rolecall.master.access import Access, Known, Principal
from rolecall.master.clock import Clock
from rolecall.master.refusals import Refusals
from rolecall.master.storage_errors import Pulse
from rolecall.master.store import audit, tokens
from rolecall.master.store.database import Database
from rolecall.master.store.records import SecretRecord, TokenRecord
from rolecall.spec.access import AuditEntry

SYNC_EVERY_S = 2.0
"""The maximum delay until a master learns of a change by another one."""
_USE_GRAIN = timedelta(minutes=1)


class AccessSync:
    """Reads tokens; writes their last use, to the minute, and refused calls."""

    def __init__(self, database: Database, access: Access, clock: Clock) -> None:
        self.unauthenticated = Refusals(clock)
        """Calls without a valid token."""
        self.refused = Refusals(clock)
        """Calls with a valid token that were answered with an error."""
        self.pulse = Pulse("reading tokens", clock.monotonic)
        self._database = database
        self._access = access
        self._stored: dict[str, datetime | None] = {}
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        """Synchronize until cancelled. While the database is unavailable, the known tokens stay valid."""
        while True:
            with self.pulse.next_pass():
                await self.refresh()
                await self.write()
            await asyncio.sleep(SYNC_EVERY_S)

    async def refresh(self) -> None:
        # One at a time, so that an earlier read never replaces the result of a later one.
        async with self._reading:
            async with self._database.read() as connection:
                found = await tokens.list_all(connection)
                secrets = await tokens.secrets(connection)
            self._stored = {token.name: token.last_used_at for token in found}
            self._access.replace(known(found, secrets))

    async def write(self) -> None:
        """Store uses and refused calls. Most rounds have none, so that a call does not cost a write."""
        used = {name: at for name, at in self._access.used.items() if self._is_news(name, at)}
        if used:
            async with self._database.write() as connection:
                await tokens.set_used(connection, used)
        for refusals in (self.unauthenticated, self.refused):
            if entries := refusals.take():
                await self._add(refusals, entries)

    async def _add(self, refusals: Refusals, entries: list[AuditEntry]) -> None:
        try:
            async with self._database.write() as connection:
                await audit.add(connection, entries)
        except DataError:
            raise  # The database would refuse it again, and later entries would never be written.
        except Exception:
            refusals.restore(entries)
            raise

    def _is_news(self, name: str, at: datetime) -> bool:
        if name not in self._stored:
            return False  # Built-in and revoked tokens have no row.
        stored = self._stored[name]
        return stored is None or at - stored >= _USE_GRAIN


def known(found: Iterable[TokenRecord], secrets: Iterable[SecretRecord]) -> list[Known]:
    """The secrets with their tokens' scopes and limits. Each expires with its token, or before."""
    by_name = {token.name: token for token in found}
    return [
        Known(
            secret.digest,
            Principal(token.name, token.scopes, token.limits),
            min((at for at in (secret.expires_at, token.expires_at) if at), default=None),
        )
        for secret in secrets
        if (token := by_name.get(secret.token))
    ]
