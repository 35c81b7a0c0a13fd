"""Handlers that answer every error with a problem document (RFC 9457)."""

import json
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import TypeAdapter
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rolecall.master.blobs import BlobError
from rolecall.master.field_errors import MAX_PROBLEMS, Problem, explain, problem, shortened
from rolecall.master.space import NoRoom
from rolecall.master.storage_errors import LeadershipLost, StoreUnavailable, storage_error
from rolecall.spec.errors import (
    CheckTimeout,
    Conflict,
    InvalidJob,
    LimitReached,
    NotFound,
    QuotaExceeded,
    RolecallError,
    StorageLimitReached,
)
from rolecall.spec.redaction import redact_text

_STATUS: dict[type[RolecallError], int] = {
    NotFound: 404,
    Conflict: 409,
    InvalidJob: 422,
    BlobError: 400,
    LimitReached: 429,
    StorageLimitReached: 413,
    QuotaExceeded: 413,
    NoRoom: 507,
    CheckTimeout: 503,
}
# The OpenAPI schema of a problem document, and the statuses that every route can answer with.
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_FIELD = {"type": "object", "properties": dict.fromkeys(("field", "message", "given", "legal"), _TEXT)}
SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "The error of a call (RFC 9457); `errors` lists the invalid fields.",
    "type": "object",
    "properties": {
        "type": _TEXT,
        "title": _TEXT,
        "status": _INTEGER,
        "detail": _TEXT,
        "instance": _TEXT,
        "errors": {"type": "array", "items": _FIELD},
    },
    "required": ["type", "title", "status", "detail", "instance"],
}
_MEANING = {
    400: "The request can't be read.",
    401: "The token is missing or wrong.",
    403: "The token does not allow this call.",
    404: "There is no such job, node, workload, checkpoint or artifact.",
    405: "There is no such call at this path.",
    409: "The request contradicts what is stored.",
    413: "The body is too large.",
    422: "A field is wrong; `errors` says which.",
    429: "Too many calls, or too much is stored; try again later.",
    503: "The master, or its database, can't answer now; try again.",
    507: "The master's volume is full.",
}
_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": _CONTENT} for status, meaning in _MEANING.items()
}

_PATH_CHARS = 400
RETRY_AFTER = {"Retry-After": "2"}
"""The headers of every 503."""


def add_problem_handlers(app: FastAPI) -> None:
    """Make `app` answer every error with a problem document."""
    app.add_exception_handler(RolecallError, _on_rolecall_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    for kind in (DBAPIError, PoolTimeout, OSError, StoreUnavailable, LeadershipLost):
        app.add_exception_handler(kind, _on_storage_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_defect)


def problem_response(
    status: int, detail: str, request: Request, errors: list[Problem] | None = None, headers: Any = None
) -> Response:
    """A problem document; `errors` lists the invalid fields."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": redact_text(detail),
        "instance": redact_text(request.url.path[:_PATH_CHARS]),
    }
    if errors:
        body["errors"] = errors
    # It quotes the request: a lone surrogate is legal in JSON escapes, but not in UTF-8.
    content = json.dumps(body, ensure_ascii=False).encode(errors="replace")
    return Response(content, status, headers, media_type="application/problem+json")


async def _on_rolecall_error(request: Request, error: Exception) -> Response:
    status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
    errors = error.problems if isinstance(error, InvalidJob) else None
    return problem_response(status, str(error), request, errors, RETRY_AFTER if status == 503 else None)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = _sentence(request, error)
    return problem_response(error.status_code, detail, request, headers=error.headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    broken = next((one for one in found if one["type"] == "json_invalid"), None)
    if broken is not None:
        why = broken.get("ctx", {}).get("error", broken["msg"])
        return problem_response(400, f"the body is not JSON: {why} (at character {broken['loc'][-1]})", request)
    body = getattr(request.scope.get("route"), "body_field", None)
    schema = TypeAdapter(body.field_info.annotation).json_schema() if body else {}
    errors = shortened([_field_error(one, schema) for one in found[:MAX_PROBLEMS]], len(found))
    detail = "; ".join(f"{one['field']}: {one['message']}" for one in errors)
    return problem_response(422, detail, request, errors)


async def _on_storage_error(request: Request, error: Exception) -> Response:
    if isinstance(error, DataError):
        # For example, a path with NUL, which PostgreSQL can neither store nor search for.
        message = str(error.orig).partition("\n")[0]
        return problem_response(422, f"the database does not accept this value: {message}", request)
    if (storage := storage_error(error)) is None:
        raise error
    if storage.full:
        return problem_response(507, storage.detail, request)
    return problem_response(503, storage.detail, request, headers=RETRY_AFTER)


async def _on_disconnect(request: Request, _error: Exception) -> Response:
    # No one reads this response. Without it, the log would have a traceback for each client that disconnects.
    return problem_response(400, "the caller hung up before its request was complete", request)


async def _on_defect(request: Request, _error: Exception) -> Response:
    # The server logs the traceback: the framework raises the error again after this response.
    return problem_response(500, "the master has a defect; its log has the traceback", request)


def _field_error(error: dict[str, Any], schema: dict[str, Any]) -> Problem:
    where, *path = error["loc"]
    if where == "body":
        return explain([error | {"loc": tuple(path)}], schema)[0]
    return problem(".".join(map(str, path)), str(error["msg"]), error.get("input"), "")


def _sentence(request: Request, error: HTTPException) -> str:
    if error.status_code == 404 and error.detail == "Not Found":
        return f"there is nothing at {request.url.path}; GET /docs lists the routes"
    if error.status_code == 405 and error.detail == "Method Not Allowed":
        return f"{request.method} is not possible at {request.url.path}; GET /docs lists the routes"
    if isinstance(cause := error.__cause__, RecursionError):
        return "the body is nested too deeply"
    if isinstance(cause, UnicodeDecodeError):
        return f"the body is not UTF-8: {cause.reason} at byte {cause.start}"
    if isinstance(cause, ValueError):
        return "the body has an integer of too many digits"
    return str(error.detail)
