import errno
import logging

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rolecall.master.api.problem import add_problem_handlers
from rolecall.master.trouble import Complaints, storage_trouble

FULL = OSError(errno.ENOSPC, "No space left on device")


def database_error(words: str, values: object = None) -> OperationalError:
    return OperationalError("UPDATE jobs SET …", values, Exception(words))


@pytest.mark.parametrize("error", [FULL, database_error("database or disk is full"), OSError(errno.EDQUOT, "quota")])
def test_a_full_volume_is_known_by_its_words(error: Exception) -> None:
    trouble = storage_trouble(error)
    assert trouble
    assert trouble.full
    assert "free some space" in trouble.detail


def test_a_database_that_is_away_says_why() -> None:
    trouble = storage_trouble(database_error("connection refused"))
    assert trouble
    assert not trouble.full
    assert "connection refused" in trouble.detail


def test_a_caller_of_a_database_in_trouble_is_told_when_to_try_again() -> None:
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
    assert storage_trouble(error) is None


def test_what_fails_again_and_again_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    complaints = Complaints()
    for moment in range(3):
        complaints.failed("reconciling", database_error("database or disk is full", moment))
    complaints.failed("bringing job 1 forward", KeyError("rank"))
    complaints.failed("reconciling", database_error("connection refused"))
    complaints.went_well("reconciling")
    complaints.went_well("reconciling")
    first, defect, second, well = caplog.records
    assert "free some space" in first.getMessage()
    assert not first.exc_info
    assert "KeyError: 'rank'" in defect.getMessage()
    assert defect.exc_info, "what may be our fault comes with a traceback"
    assert "connection refused" in second.getMessage()
    assert well.getMessage() == "reconciling goes well again"
