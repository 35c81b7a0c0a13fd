# pyright: standard
import asyncio
import errno
import logging
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rolecall.master.api.error_handlers import add_problem_handlers
from rolecall.master.cleaner import Cleaner
from rolecall.master.program import Program
from rolecall.master.server import MasterServer, listen
from rolecall.master.storage_errors import ErrorLog, storage_error
from rolecall.master.store.database import Database, sqlite_url

from .harness import CATALOGUE, make_settings, on_master

FULL = OSError(errno.ENOSPC, "No space left on device")


def database_error(words: str, values: Any = None) -> OperationalError:
    return OperationalError("UPDATE jobs SET …", values, Exception(words))


@pytest.mark.parametrize("error", [FULL, database_error("database or disk is full"), OSError(errno.EDQUOT, "quota")])
def test_a_full_volume_is_known_by_its_words(error: Exception) -> None:
    found = storage_error(error)
    assert found
    assert found.full
    assert "free some space" in found.detail


def test_an_unavailable_database_says_why() -> None:
    found = storage_error(database_error("connection refused"))
    assert found
    assert not found.full
    assert "connection refused" in found.detail


def test_a_caller_of_a_database_in_found_learns_when_to_try_again() -> None:
    app = FastAPI()
    add_problem_handlers(app)

    @app.get("/{words}")
    async def call(words: str) -> None:
        raise PoolTimeout if words == "pool" else database_error(words)

    client = TestClient(app)
    for words, said in (
        ("pool", "all connections to the database have been in use for too long"),
        ("database is locked", "the database is locked by another transaction for too long: database is locked; try"),
        ("canceling statement due to lock timeout", "the database is locked by another transaction"),
        ("canceling statement due to statement timeout", "the database does not answer: canceling statement"),
    ):
        refused = client.get(f"/{words}")
        assert refused.status_code == 503
        assert refused.headers["Retry-After"]
        assert said in refused.json()["detail"]


@pytest.mark.parametrize("error", [KeyError("x"), OSError(errno.EACCES, "x"), IntegrityError("…", None, Exception())])
def test_other_errors_are_none_of_the_storages(error: Exception) -> None:
    assert storage_error(error) is None


def test_what_fails_repeatedly_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    errors = ErrorLog()
    for moment in range(3):
        errors.failed("reconciling", database_error("database or disk is full", moment))
    errors.failed("bringing job 1 forward", KeyError("rank"))
    errors.failed("reconciling", database_error("connection refused"))
    errors.recovered("reconciling")
    errors.recovered("reconciling")
    first, defect, second, well = caplog.records
    assert "free some space" in first.getMessage()
    assert not first.exc_info
    assert "KeyError: 'rank'" in defect.getMessage()
    assert defect.exc_info, "what may be our fault comes with a traceback"
    assert "connection refused" in second.getMessage()
    assert well.getMessage() == "reconciling recovered"


@pytest.mark.parametrize(("free", "said"), [(0, "is full"), (1 << 30, "disk I/O error")])
async def test_a_disk_that_fails_is_full_only_if_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    """A limit on the size of files makes SQLite fail as a bad disk does."""

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    database = Database(sqlite_url(tmp_path / "test.db"))
    try:
        async with database.write() as connection:
            await connection.execute(text("CREATE TABLE big (value)"))
            with pytest.raises(OperationalError) as caught:
                await connection.execute(text("INSERT INTO big VALUES (randomblob(4000000))"))
    finally:
        await database.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found = storage_error(caught.value)
    assert found
    assert found.full is (free == 0)
    assert said in found.detail


async def test_a_master_that_is_not_ready_shows_no_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_: Database) -> None:
        raise database_error("connection refused")

    async with on_master(tmp_path) as client:
        monkeypatch.setattr(Database, "ping", refused)
        answer = await client.user("GET", "/readyz")
        assert answer.status_code == 503
        assert answer.json()["detail"] == "the database does not answer: connection refused; try again"


@pytest.mark.parametrize("error", [None, KeyError("a defect"), asyncio.CancelledError()])
async def test_a_master_ends_with_a_loop_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    async def ends(_: Cleaner) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(Cleaner, "run", ends)
    with listen("127.0.0.1", 0) as listener:
        server = MasterServer(Program(make_settings(tmp_path), CATALOGUE))
        async with asyncio.timeout(20):
            await server.serve(sockets=[listener])
    fault = server.program.fault
    assert fault is error if isinstance(error, KeyError) else "cleaner" in str(fault)
