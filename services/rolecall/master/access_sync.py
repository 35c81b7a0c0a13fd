"""Keeps the tokens in memory and those in the database the same, also with several masters on one database."""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta

from sqlalchemy.exc import DataError

from rolecall.master.access import Access, Known, Principal
from rolecall.master.clock import Clock
from rolecall.master.refusals import Refusals
from rolecall.master.storage_errors import ErrorLog
from rolecall.master.store import audit, tokens
from rolecall.master.store.database import Database
from rolecall.master.store.records import SecretRecord, TokenRecord
from rolecall.spec.access import AuditEntry

SYNC_EVERY_S = 2.0
"""After this time at the latest a master knows what another one has changed."""
_USE_GRAIN = timedelta(minutes=1)


class AccessSync:
    """Reads tokens; writes when they were used, to the minute, and the calls that were refused."""

    def __init__(self, database: Database, access: Access, clock: Clock) -> None:
        self.unauthenticated = Refusals(clock)
        """Calls without a valid token."""
        self.refused = Refusals(clock)
        """Calls with a valid token that got an error for an answer."""
        self._database = database
        self._access = access
        self._stored: dict[str, datetime | None] = {}
        self._reading = asyncio.Lock()
        self._errors = ErrorLog()

    async def run(self) -> None:
        """Again and again, until cancelled. While the database is away, the tokens known so far stay valid."""
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            try:
                await self.refresh()
                await self.write()
                self._errors.recovered("reading tokens")
            except Exception as error:  # noqa: BLE001 - a loop's tick: the next one tries again
                self._errors.failed("reading tokens", error)

    async def refresh(self) -> None:
        """Take over what the database has."""
        # One at a time: what was read before a change must not be taken over after it.
        async with self._reading:
            async with self._database.read() as connection:
                found = await tokens.list_all(connection)
                secrets = await tokens.secrets(connection)
            self._stored = {token.name: token.last_used_at for token in found}
            self._access.replace(known(found, secrets))

    async def write(self) -> None:
        """Store what is new: nothing in most rounds, so that a call costs no write."""
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
            raise  # It would be refused again, and everything behind it would wait.
        except Exception:
            refusals.restore(entries)
            raise

    def _is_news(self, name: str, at: datetime) -> bool:
        if name not in self._stored:
            return False  # A built-in token has no row, nor has one that was revoked.
        stored = self._stored[name]
        return stored is None or at - stored >= _USE_GRAIN


def known(found: Iterable[TokenRecord], secrets: Iterable[SecretRecord]) -> list[Known]:
    """The secrets with their tokens' rights; each expires with its token, or before."""
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
