"""Every error of a call becomes a problem document, which reveals nothing that it should not."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect, Request

from rolecall.master.api.error_handlers import PROBLEM_TYPES, add_problem_handlers, problem_response
from rolecall.master.blobs import BlobError
from rolecall.master.space import NoRoom
from rolecall.spec import errors
from rolecall.spec.errors import PROBLEM_PREFIX, RolecallError


def answer(error: Exception) -> tuple[dict[str, Any], str | None]:
    """The problem document of a call that raises `error`, and its `Retry-After`."""
    app = FastAPI()
    add_problem_handlers(app)

    @app.get("/fails")
    async def fails() -> None:
        raise error

    response = TestClient(app, raise_server_exceptions=False).get("/fails")
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    return body, response.headers.get("retry-after")


def kinds(base: type[RolecallError] = RolecallError) -> Iterator[type[RolecallError]]:
    """The class `base` and all below it in `spec.errors`."""
    yield base
    for kind in base.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from kinds(kind)


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_s"),
    [
        (errors.NotFound("x"), 404, "not-found", None),
        (errors.Conflict("x"), 409, "conflict", None),
        (errors.IllegalTransition("x"), 409, "illegal-transition", None),
        (errors.LimitReached("x"), 429, "limit-reached", "10"),
        (errors.StorageLimitReached("x"), 413, "storage-limit-reached", None),
        (errors.QuotaExceeded("x"), 413, "job-too-large", None),
        (errors.InputError("x"), 500, "internal-error", None),
        (errors.CheckTimeout("x"), 503, "check-timeout", "2"),
        (BlobError("x"), 400, "invalid-upload", None),
        (NoRoom("x"), 507, "volume-full", "60"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_has_the_status_and_type_of_its_nearest_class(
    error: Exception, status: int, kind: str, retry_s: str | None
) -> None:
    body, retry_after = answer(error)
    assert (body["status"], body["type"], retry_after) == (status, PROBLEM_PREFIX + kind, retry_s)


def test_every_error_has_a_type_that_is_documented() -> None:
    for kind in kinds():
        error = kind([]) if issubclass(kind, errors.InvalidRequest) else kind("x")
        assert answer(error)[0]["type"] in PROBLEM_TYPES, kind


def test_invalid_fields_are_listed() -> None:
    field_errors = [{"field": "name", "message": "is too long"}, {"field": "roles", "message": "are missing"}]
    body, _ = answer(errors.InvalidJob(field_errors))
    assert body["errors"] == field_errors
    assert body["detail"] == "name: is too long; roles: are missing"


def test_a_defect_is_not_described_to_the_caller() -> None:
    body, _ = answer(KeyError("the inner state"))
    assert body["status"] == 500
    assert "inner" not in str(body)


def test_a_caller_who_hangs_up_is_no_defect() -> None:
    assert answer(ClientDisconnect())[0]["status"] == 400


def test_a_problem_hides_credentials_and_quotes_what_is_no_text() -> None:
    path = "/jobs/" + "x" * 1000
    request = Request({"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""})
    response = problem_response(409, "postgresql://me:hunter2@db/x: half \ud800", request)
    body = bytes(response.body).decode()
    assert "hunter2" not in body
    assert "half ?" in body
    assert len(body) < 700, "the path is shortened"
