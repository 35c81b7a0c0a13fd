"""The connections to SQLite or PostgreSQL, and the migration at start.

Readers and writers have separate pools, so that writers that wait for a lock never delay readers. Every wait has a
limit: for a connection of the pool, a lock, a statement, and a server that doesn't answer. Users have a share of each
pool, so that nodes and the master's loops always get a connection, regardless of the number of users' calls.
"""

import asyncio
import os
import socket
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg.abc import PQGen
from sqlalchemy import Connection, ExceptionContext, event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rolecall.master.store import terms
from rolecall.spec.errors import SettingsError, StaleAttempt

_T = TypeVar("_T")
_MIGRATIONS = Path(__file__).parent / "migrations"
_READERS, _USERS_READERS = 15, 10
_WRITERS, _USERS_WRITERS = 10, 6
_VANISHED_MS = 12_000
_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}
SCHEMES = tuple(_DRIVERS)
"""The valid schemes of a database URL."""
_FULL_BYTES = 1 << 20
"""The free space below which a transaction doesn't fit."""

_of_user: ContextVar[bool] = ContextVar("_of_user", default=False)


def serve_user(*, is_user: bool = True) -> None:
    """Take the connections of this task from the users' share, or not.

    The server can begin a request in the context of an earlier one on the same connection, which belongs to other
    callers if a proxy shares it. Therefore, set it for each request.
    """
    _of_user.set(is_user)


@dataclass(frozen=True, slots=True)
class DatabaseTimeouts:
    """The time limits of database calls, in seconds."""

    pool_s: float = 10.0
    """Until a connection of the pool is free."""
    lock_s: float = 5.0
    """Until another transaction gives up a lock."""
    statement_s: float = 8.0
    """PostgreSQL: for one statement, locks included."""
    idle_s: float = 15.0
    """PostgreSQL: until the server ends a transaction in which this master is silent, and with it its locks."""
    connect_s: int = 5
    """PostgreSQL: until a new connection is made."""
    answer_s: float = 12.0
    """PostgreSQL: until the server answers anything at all. A server that is stopped can't keep its own limits."""


LIMITS = DatabaseTimeouts()
_PATIENT = DatabaseTimeouts(statement_s=0, answer_s=24 * 3600)  # PostgreSQL takes 0 for no limit


class Database:
    """Opens transactions. SQLite has one writer at a time; PostgreSQL locks rows."""

    def __init__(
        self,
        url: str,
        limits: DatabaseTimeouts = LIMITS,
        observe: Callable[[str, float], None] = lambda _access, _seconds: None,
    ) -> None:
        """`observe` gets the kind (`read`, `write`) and the seconds of each transaction."""
        self._url = url
        self._observe = observe
        self._limits = limits
        self._term: int | None = None
        if is_sqlite(url):
            # SQLite allows one writer. The pool's queue is fair, unlike SQLite's locks.
            self._writer = _sqlite_engine(url, limits, writes=True, pool_size=1)
            self._reader = _sqlite_engine(url, limits, writes=False, pool_size=_READERS)
        else:
            self._writer = _postgres_engine(url, limits, pool_size=_WRITERS)
            self._reader = _postgres_engine(url, limits, writes=False, pool_size=_READERS)
        self._users_reads = asyncio.Semaphore(_USERS_READERS)
        # SQLite's writer can't be shared, so at most one user waits for it at a time.
        self._users_writes = asyncio.Semaphore(1 if is_sqlite(url) else _USERS_WRITERS)

    def fence(self, term: int) -> None:
        """Restrict writes to this term of leadership."""
        self._term = term

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction that commits at the end of the block, or rolls back if it raises an error.

        Raises `LeadershipLost` when another master leads.
        """
        async with self._timed("write"), self._share(self._users_writes), self._writer.begin() as connection:
            if self._term is not None:
                await terms.check(connection, self._term)
            yield connection

    async def with_retry(self, change: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        """The result of a change in its own transaction, which is repeated once if another one was committed first.

        On PostgreSQL, two transactions can insert or change the same row at the same time.
        """
        try:
            async with self.write() as connection:
                return await change(connection)
        except (IntegrityError, StaleAttempt):
            async with self.write() as connection:
                return await change(connection)

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A read-only transaction, concurrent with writers."""
        async with self._timed("read"), self._share(self._users_reads), self._reader.connect() as connection:
            yield connection

    @asynccontextmanager
    async def _timed(self, access: str) -> AsyncGenerator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._observe(access, time.perf_counter() - began)

    @asynccontextmanager
    async def _share(self, users: asyncio.Semaphore) -> AsyncGenerator[None]:
        """A slot in the users' share for a task that serves a user. Raises a pool's timeout error after `pool_s`."""
        if not _of_user.get():
            yield
            return
        try:
            async with asyncio.timeout(self._limits.pool_s):
                await users.acquire()
        except TimeoutError:
            raise PoolTimeout("users' calls have all connections of their share") from None
        try:
            yield
        finally:
            users.release()

    async def migrate(self) -> None:
        """Migrate the tables to this version if necessary, without a time limit.

        Raises `SettingsError` if a newer release has migrated them.
        """
        engine = self._writer if is_sqlite(self._url) else _postgres_engine(self._url, _PATIENT, poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)

    async def ping(self) -> None:
        """Raise `SQLAlchemyError` unless the database answers."""
        async with self.read() as connection:
            await connection.execute(text("SELECT 1"))

    async def close(self) -> None:
        await self._reader.dispose()
        await self._writer.dispose()


def sqlite_url(path: Path) -> str:
    """The URL of the SQLite database in the file `path`."""
    return f"sqlite:///{path}"


def lock_engine(url: str, limits: DatabaseTimeouts) -> AsyncEngine:
    """A PostgreSQL engine without pool and transactions, for a session that holds a lock."""
    return _postgres_engine(url, limits, poolclass=NullPool, isolation_level="AUTOCOMMIT")


def _with_driver(url: str) -> str:
    """The URL with the driver of its scheme. Raises `ValueError` for other schemes and drivers."""
    scheme, _, rest = url.partition(":")
    for known, driver in _DRIVERS.items():
        if scheme in {known, driver}:
            return f"{driver}:{rest}"
    raise ValueError("a database URL has one of the schemes " + ", ".join(SCHEMES))


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def _sqlite_engine(url: str, limits: DatabaseTimeouts, *, writes: bool, pool_size: int) -> AsyncEngine:
    engine = create_async_engine(_with_driver(url), pool_size=pool_size, max_overflow=0, pool_timeout=limits.pool_s)
    file = engine.url.database
    # A writer locks before it reads, because a transaction that has read can't write after another one has.
    begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
    pragmas = ["journal_mode=WAL", "foreign_keys=ON", f"busy_timeout={limits.lock_s * 1000:.0f}"]

    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.isolation_level = None  # `on_begin` starts transactions, not the driver
        cursor = connection.cursor()
        for pragma in [*pragmas, *([] if writes else ["query_only=ON"])]:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.exec_driver_sql(begin)

    @event.listens_for(engine.sync_engine, "handle_error")
    def on_error(context: ExceptionContext) -> OperationalError | None:  # pyright: ignore[reportUnusedFunction]
        # The error means a bad disk, or a full one without space for the index of the write-ahead log.
        if file and "disk I/O error" in str(context.original_exception):
            found = os.statvfs(Path(file).parent)
            if found.f_bavail * found.f_frsize < _FULL_BYTES:
                full = sqlite3.OperationalError("database or disk is full")
                return OperationalError(context.statement, context.parameters, full)
        return None

    return engine


def _postgres_engine(url: str, limits: DatabaseTimeouts, *, writes: bool = True, **options: Any) -> AsyncEngine:
    pool = {} if "poolclass" in options else {"max_overflow": 0, "pool_timeout": limits.pool_s, "pool_pre_ping": True}
    engine = create_async_engine(_with_driver(url), connect_args=_connect_args(limits), **pool, **options)
    session = {
        "statement_timeout": f"{limits.statement_s:g}s",
        "lock_timeout": f"{limits.lock_s:g}s",
        "idle_in_transaction_session_timeout": f"{limits.idle_s:g}s",
        "default_transaction_read_only": "off" if writes else "on",
    }

    # Not with the connection's `options`, which the URL can set, and which poolers reject.
    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        cursor = connection.cursor()
        for name, value in session.items():
            cursor.execute(f"SET {name} = '{value}'")
        cursor.close()
        connection.commit()

    return engine


def _connect_args(limits: DatabaseTimeouts) -> dict[str, Any]:
    class Bounded(_Bounded):
        answer_s = limits.answer_s

    return {
        # Independent of the database's encoding: without one (SQL_ASCII), text would arrive as bytes.
        "client_encoding": "utf8",
        "connect_timeout": limits.connect_s,
        # Detect a peer that disappears within about this time instead of the kernel's 15 minutes.
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": _VANISHED_MS,
        "async_creator_fn": Bounded.connect,
    }


class _Bounded(psycopg.AsyncConnection[Any]):
    """A connection that breaks if the server doesn't answer within `answer_s`.

    Only closing the socket reliably ends the wait. When it is cancelled, psycopg asks the server to cancel, and waits.
    """

    answer_s = 0.0

    async def wait(self, gen: PQGen[Any], *arguments: Any, **options: Any) -> Any:
        breaking = asyncio.get_running_loop().call_later(self.answer_s, self._break)
        try:
            return await super().wait(gen, *arguments, **options)
        except psycopg.OperationalError as error:
            if asyncio.get_running_loop().time() < breaking.when():
                raise
            raise psycopg.OperationalError(f"no answer from the server within {self.answer_s:g} s") from error
        finally:
            breaking.cancel()

    def _break(self) -> None:
        with socket.socket(fileno=os.dup(self.pgconn.socket)) as broken:
            broken.shutdown(socket.SHUT_RDWR)


@cache
def _newest_revision() -> str | None:
    return ScriptDirectory(str(_MIGRATIONS)).get_current_head()


def _upgrade(connection: Connection) -> None:
    if MigrationContext.configure(connection).get_current_revision() == _newest_revision():
        return
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:  # It does not know the database's revision.
        raise SettingsError(
            f"a newer release of Rolecall migrated the database ({error}); run that release, "
            "or restore the backup from before the upgrade"
        ) from None
