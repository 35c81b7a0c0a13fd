"""A failing database: every wait for it ends in time with an explanation, and readers do not wait for writers."""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from rolecall.master.storage_errors import LeadershipLost, storage_error
from rolecall.master.store import terms
from rolecall.master.store.database import Database, DatabaseTimeouts, sqlite_url

from .harness import ONE_TRAINER, make_settings, one_trainer, serving

QUICK = DatabaseTimeouts(pool_s=0.5, lock_s=0.5, statement_s=1.0, idle_s=1.0, connect_s=2, answer_s=2.0)
NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENOUGH_S = 20.0
"""Generous: without limits these tests would wait indefinitely."""


@asynccontextmanager
async def opened(url: str, limits: DatabaseTimeouts = QUICK) -> AsyncGenerator[Database]:
    """A migrated database, closed at the end."""
    database = Database(url, limits)
    try:
        await database.migrate()
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def write_locked(path: Path) -> AsyncGenerator[None]:
    """SQLite's write lock, held by another program."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
        async with asyncio.timeout(ENOUGH_S):
            while True:
                try:
                    other.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.OperationalError:  # A loop of the master writes; it needs this event loop.
                    await asyncio.sleep(0.01)
        yield
        other.execute("ROLLBACK")


@contextmanager
def stopped(pids: list[int]) -> Generator[None]:
    """Processes that neither answer nor close their sockets, like a machine behind a network partition."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def error_detail(call: Callable[[], Awaitable[object]]) -> str:
    """The detail that a caller gets about an error that comes in time."""
    async with asyncio.timeout(ENOUGH_S):
        with pytest.raises(SQLAlchemyError) as caught:
            await call()
    found = storage_error(caught.value)
    assert found, caught.value
    assert not found.full
    return found.detail


async def write(database: Database) -> None:
    """A small transaction that changes something."""
    async with database.write() as connection:
        await connection.execute(text("DELETE FROM idempotency"))


@pytest.mark.slow
async def test_a_locked_sqlite_database_delays_no_reader_and_loses_no_node(tmp_path: Path) -> None:
    async with serving(make_settings(tmp_path)) as client:
        node = await one_trainer(client)
        async with write_locked(tmp_path / "rolecall.db"):
            writers = [asyncio.create_task(client.submit(roles=ONE_TRAINER)) for _ in range(25)]
            await asyncio.sleep(0)
            begun = time.monotonic()
            for _ in range(3):
                assert (await client.user("GET", "/jobs")).status_code == 200
                assert (await client.http.get("/healthz")).status_code == 200
                assert await node.beat() == []
            assert time.monotonic() - begun < 4
            assert not any(writer.done() for writer in writers)
        assert len({document["id"] for document in await asyncio.gather(*writers)}) == 25
        (known,) = (await client.user("GET", "/nodes")).json()["nodes"]
        assert known["alive"]


async def test_waiting_writers_are_answered_in_time(tmp_path: Path) -> None:
    async with opened(sqlite_url(tmp_path / "test.db")) as database:
        async with write_locked(tmp_path / "test.db"):
            details = await asyncio.gather(*(error_detail(lambda: write(database)) for _ in range(4)))
            await database.ping()
        assert any("locked" in one for one in details)
        assert any("all connections to the database have been in use" in one for one in details)
        await write(database)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_reader_cannot_write(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgresql" else sqlite_url(tmp_path / "test.db")

    async with opened(url) as database:
        with pytest.raises(SQLAlchemyError, match=r"read-?only"):
            async with database.read() as connection:
                await connection.execute(text("DELETE FROM idempotency"))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_who_no_longer_leads_cannot_write(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = request.getfixturevalue("postgres_url") if kind == "postgresql" else sqlite_url(tmp_path / "test.db")

    async with opened(url) as first, opened(url) as second:
        for database, leader in ((first, "first"), (second, "second")):
            async with database.write() as connection:
                database.fence(await terms.begin(connection, leader, NOW))
        await write(second)
        with pytest.raises(LeadershipLost, match="second has taken over"):
            await write(first)
        async with second.write() as connection:
            await connection.execute(text("DELETE FROM leadership"))


async def test_a_term_begins_behind_the_transactions_of_the_last(postgres_url: str) -> None:
    async with opened(postgres_url) as first, opened(postgres_url) as second:
        async with first.write() as connection:
            first.fence(await terms.begin(connection, "first", NOW))

        async def take_over() -> None:
            async with second.write() as connection:
                await terms.begin(connection, "second", NOW)

        async with first.write():
            assert "is locked by another transaction" in await error_detail(take_over)
        await take_over()
        with pytest.raises(LeadershipLost):
            await write(first)
        async with second.write() as connection:
            await connection.execute(text("DELETE FROM leadership"))


async def test_a_lock_in_postgresql_delays_writers_for_a_bounded_time_and_readers_not_at_all(postgres_url: str) -> None:
    async with opened(postgres_url) as database:
        with psycopg.connect(postgres_url) as other:
            other.execute("LOCK TABLE idempotency IN EXCLUSIVE MODE")
            assert "is locked by another transaction" in await error_detail(lambda: write(database))
            async with database.read() as connection:
                await connection.execute(text("SELECT count(*) FROM idempotency"))
        await write(database)


@pytest.mark.slow
async def test_a_statement_that_takes_too_long_is_ended_by_the_server(postgres_url: str) -> None:
    async def sleep(database: Database) -> None:
        async with database.read() as connection:
            await connection.execute(text("SELECT pg_sleep(60)"))

    async with opened(postgres_url) as database:
        assert "statement timeout" in await error_detail(lambda: sleep(database))


@pytest.mark.slow
async def test_a_transaction_that_falls_silent_gives_its_locks_back(postgres_url: str) -> None:
    locked = asyncio.Event()

    async def stall(database: Database) -> None:
        async with database.write() as connection:
            await connection.execute(text("LOCK TABLE idempotency IN EXCLUSIVE MODE"))
            locked.set()
            await asyncio.sleep(3 * QUICK.idle_s)
            await connection.execute(text("SELECT 1"))

    async with opened(postgres_url) as database, opened(postgres_url, DatabaseTimeouts()) as other:
        stalling = asyncio.create_task(error_detail(lambda: stall(database)))
        await locked.wait()
        await write(other)
        assert "the database does not answer" in await stalling


@pytest.mark.slow
async def test_a_server_that_stops_without_a_word_holds_nobody_up(postgres_url: str) -> None:
    async with opened(postgres_url) as database:
        await write(database)
        await database.ping()
        with psycopg.connect(postgres_url) as other:
            own = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
            backends = [pid for (pid,) in other.execute(f"SELECT pid FROM pg_stat_activity WHERE {own}")]
        postmaster = psutil.Process(backends[0]).ppid()
        with stopped([*backends, postmaster]):
            for call in (database.ping, lambda: write(database)):
                assert "the database does not answer" in await error_detail(call)
        await database.ping()
        await write(database)


@pytest.mark.slow
async def test_a_connection_that_is_being_used_breaks_when_the_server_stops(postgres_url: str) -> None:
    async with opened(postgres_url, DatabaseTimeouts(answer_s=1.0)) as database:

        async def stop_within() -> None:
            async with database.write() as connection:
                pid = (await connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()
                with stopped([pid]):
                    await connection.execute(text("SELECT 1"))

        assert "no answer from the server within 1 s" in await error_detail(stop_within)
        await write(database)
