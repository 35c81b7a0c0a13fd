"""The connection to SQLite or PostgreSQL, and its migration at start."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, event, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

_MIGRATIONS = Path(__file__).parent / "migrations"


class Database:
    """Opens transactions. Writers queue up behind one another on SQLite; PostgreSQL locks rows."""

    def __init__(self, url: str) -> None:
        if _is_sqlite(url):
            self._engine = create_async_engine(_with_driver(url))
            _tame_sqlite(self._engine)
        else:
            # Whatever the database's own encoding is: of one that has none (SQL_ASCII) we would get bytes.
            encoding = {"client_encoding": "utf8"}
            self._engine = create_async_engine(_with_driver(url), pool_pre_ping=True, connect_args=encoding)
        self._reader = self._engine.execution_options(sqlite_begin="BEGIN")

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction that commits when the block ends well and rolls back when it raises."""
        async with self._engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[AsyncConnection]:
        """A transaction that only reads, beside any writer."""
        async with self._reader.connect() as connection:
            yield connection

    async def migrate(self) -> None:
        """Bring the tables to this version's form; does nothing where they have it."""
        async with self._engine.begin() as connection:
            await connection.run_sync(_upgrade)

    async def ping(self) -> None:
        """Raise `SQLAlchemyError` unless the database answers."""
        async with self.read() as connection:
            await connection.execute(text("SELECT 1"))

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


def sqlite_url(path: Path) -> str:
    """The URL of the SQLite database in the file `path`."""
    return f"sqlite:///{path}"


def _with_driver(url: str) -> str:
    for scheme, driver in (("sqlite:", "sqlite+aiosqlite:"), ("postgresql:", "postgresql+psycopg:")):
        if url.startswith(scheme):
            return driver + url.removeprefix(scheme)
    return url


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def _tame_sqlite(engine: AsyncEngine) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:  # pyright: ignore[reportUnusedFunction]
        connection.isolation_level = None  # the driver begins no transactions by itself: `on_begin` does
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "foreign_keys=ON", "busy_timeout=10000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def on_begin(connection: Connection) -> None:  # pyright: ignore[reportUnusedFunction]
        # A writer takes the lock before it reads: a reader can't turn into a writer once another has written.
        options = connection.get_execution_options()
        connection.exec_driver_sql(options.get("sqlite_begin", "BEGIN IMMEDIATE"))


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
