"""Handlers that answer every error with a problem document (RFC 9457)."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import TypeAdapter
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import Scope

from rolecall.master.api.headers import with_headers
from rolecall.master.api.parameters import parameters_of
from rolecall.master.blobs import BlobError
from rolecall.master.field_errors import MAX_FIELD_ERRORS, FieldError, explain
from rolecall.master.space import NoRoom
from rolecall.master.storage_errors import LeadershipLost, StoreUnavailable, storage_error
from rolecall.spec.errors import (
    PROBLEM_PREFIX,
    STANDBY,
    BrokenWorkload,
    CheckTimeout,
    Conflict,
    IllegalTransition,
    InvalidRequest,
    LimitReached,
    NotFound,
    QuotaExceeded,
    RolecallError,
    StaleAttempt,
    StorageLimitReached,
    about_fields,
)
from rolecall.spec.json_errors import json_problem
from rolecall.spec.json_schema import not_null
from rolecall.spec.redaction import redact_text

ErrorHandler = Callable[[Request, Exception], Awaitable[Response]]
_CAUSES: dict[type[RolecallError], tuple[int, str]] = {
    NotFound: (404, "not-found"),
    Conflict: (409, "conflict"),
    IllegalTransition: (409, "illegal-transition"),
    StaleAttempt: (409, "stale-attempt"),
    InvalidRequest: (422, "invalid-request"),
    BlobError: (400, "invalid-upload"),
    LimitReached: (429, "limit-reached"),
    StorageLimitReached: (413, "storage-limit-reached"),
    QuotaExceeded: (413, "job-too-large"),
    NoRoom: (507, "volume-full"),
    CheckTimeout: (503, "check-timeout"),
    BrokenWorkload: (500, "broken-workload"),
    RolecallError: (500, "internal-error"),
}
"""The status and the type of the problem document of each error."""
_TYPES = {
    400: "malformed-request",
    401: "unauthorized",
    403: "forbidden",
    404: "no-such-route",
    405: "method-not-allowed",
    409: "conflict",
    413: "body-too-large",
    416: "range-not-satisfiable",
    422: "invalid-request",
    429: "too-many-requests",
    500: "internal-error",
    503: "unavailable",
    507: "volume-full",
}
"""The types of the other problem documents, by status."""
PROBLEM_TYPES = sorted(
    {PROBLEM_PREFIX + kind for kind in (*_TYPES.values(), *(kind for _, kind in _CAUSES.values()), STANDBY)}
)
"""The values of `type` in problem documents. They are stable, so that programs can distinguish causes."""
# The OpenAPI schema of a problem document, and the meanings of its statuses.
_TEXT, _INTEGER = {"type": "string"}, {"type": "integer"}
_FIELD = {"type": "object", "properties": dict.fromkeys(("field", "message", "given", "legal"), _TEXT)}
SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "The error of a call (RFC 9457); `errors` lists the invalid fields.",
    "type": "object",
    "properties": {
        "type": {"type": "string", "enum": PROBLEM_TYPES, "description": "The cause. Its values are stable."},
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
    409: "The request contradicts what is stored.",
    413: "The body is too large, or exceeds what the job or its token may store.",
    416: "The requested range is outside the file.",
    422: "Fields are invalid; `errors` lists them.",
    429: "The token has reached a limit, which the text names, or has too many connections or calls.",
    500: "The master or a plug-in has a defect; the master's log has the traceback.",
    503: "The master, or its database, can't answer now; try again.",
    507: "The master's volume is full.",
}
_RETRY_AFTER_S = {429: 10, 503: 2, 507: 60}
_HEADERS = {401: ("WWW-Authenticate",), 416: ("Content-Range",), **dict.fromkeys(_RETRY_AFTER_S, ("Retry-After",))}
_CONTENT = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of problem documents with these statuses."""
    return {
        status: {"description": _MEANING[status], "content": _CONTENT, **with_headers(*_HEADERS.get(status, ()))}
        for status in statuses
    }


RESPONSES = documented(401, 403, 422, 429, 500, 503)
"""The errors of every call that needs a token. `openapi.complete` adds those that depend on a call's form, and routes
declare the others.
"""

_PATH_CHARS = 400


def add_problem_handlers(app: FastAPI, adapt: Callable[[ErrorHandler], ErrorHandler] = lambda handler: handler) -> None:
    """Make `app` answer every error with a problem document, or with what `adapt` makes of it."""
    handlers: dict[type[Exception], ErrorHandler] = {
        RolecallError: _on_rolecall_error,
        HTTPException: _on_http_exception,
        RequestValidationError: _on_validation_error,
        **dict.fromkeys((DBAPIError, PoolTimeout, OSError, StoreUnavailable, LeadershipLost), _on_storage_error),
        ClientDisconnect: _on_disconnect,
        Exception: _on_defect,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, adapt(handler))


def problem_response(
    status: int,
    detail: str,
    request: Request,
    errors: list[FieldError] | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    kind: str | None = None,
) -> Response:
    """A problem document of the type `kind`, by default that of the status; `errors` lists the invalid fields.

    If the same call can succeed later, `Retry-After` says when.
    """
    body: dict[str, Any] = {
        "type": PROBLEM_PREFIX + (kind or _TYPES[status]),
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": redact_text(detail),
        "instance": redact_text(request.scope["path"])[:_PATH_CHARS],
    }
    if errors:
        body["errors"] = errors
    # It quotes the request: a lone surrogate is legal in JSON escapes, but not in UTF-8.
    content = json.dumps(body, ensure_ascii=False).encode(errors="replace")
    retry = {"Retry-After": str(_RETRY_AFTER_S[status])} if status in _RETRY_AFTER_S else {}
    return Response(content, status, {**retry, **(headers or {})}, media_type="application/problem+json")


async def _on_rolecall_error(request: Request, error: Exception) -> Response:
    status, cause = next(_CAUSES[kind] for kind in type(error).__mro__ if kind in _CAUSES)
    errors = error.field_errors if isinstance(error, InvalidRequest) else None
    return problem_response(status, str(error), request, errors, kind=cause)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """The problem document of an error of the framework or a route, such as an unknown path."""
    assert isinstance(error, HTTPException)
    return problem_response(error.status_code, _sentence(request, error), request, headers=error.headers)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    """The problem document of a request that the framework refuses."""
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    broken = next((one for one in found if one["type"] == "json_invalid"), None)
    if broken is not None:
        why, at = broken.get("ctx", {}).get("error", broken["msg"]), broken["loc"][-1]
        if isinstance(error.body, str) and isinstance(at, int):
            why = json_problem(why, error.body, at)
        return problem_response(400, f"the body is not JSON: {why} (at character {at})", request)
    errors = _field_errors(request, found, error.body)
    return problem_response(422, about_fields(errors), request, errors)


async def _on_storage_error(request: Request, error: Exception) -> Response:
    if isinstance(error, DataError):
        # For example, a path with NUL, which PostgreSQL can neither store nor search for.
        message = str(error.orig).partition("\n")[0]
        return problem_response(422, f"the database does not accept this value: {message}", request)
    if (storage := storage_error(error)) is None:
        raise error
    return problem_response(507 if storage.full else 503, storage.detail, request)


async def _on_disconnect(request: Request, _error: Exception) -> Response:
    # No one reads this response. Without it, the log would have a traceback for each client that disconnects.
    return problem_response(400, "the caller hung up before its request was complete", request)


async def _on_defect(request: Request, _error: Exception) -> Response:
    # The server logs the traceback: the framework raises the error again after this response.
    return problem_response(500, "the master has a defect; its log has the traceback", request)


def is_route(scope: Scope, path: str) -> bool:
    """Return whether a route has this path."""
    return any(route.matches({**scope, "path": path})[0] is not Match.NONE for route in scope["app"].router.routes)


def _field_errors(request: Request, found: Sequence[dict[str, Any]], given: Any) -> list[FieldError]:
    """The problems of a request that the framework refuses: of its body, and of its parameters."""
    route = request.scope.get("route")
    body = getattr(route, "body_field", None)
    schema = TypeAdapter(body.field_info.annotation).json_schema() if body else {}
    of_body = [one | {"loc": tuple(one["loc"][1:])} for one in found if one["loc"][0] == "body"]
    others = [one for one in found if one["loc"][0] != "body"][:MAX_FIELD_ERRORS]
    # Deriving a schema takes longer than all else here, so each name has it derived once.
    names = {one["loc"][1] for one in others}
    own = {field.alias: _parameter_schema(field.field_info) for field in parameters_of(route) if field.alias in names}
    return [*explain(of_body, schema, value=given), *(_parameter_error(one, own) for one in others)]


def _parameter_schema(field: Any) -> Mapping[str, Any]:
    kind: Any = Annotated[field.annotation, field]
    return not_null(TypeAdapter(kind).json_schema())


def _parameter_error(error: dict[str, Any], own: Mapping[str, Mapping[str, Any]]) -> FieldError:
    _, name, *path = error["loc"]
    (one,) = explain([error | {"loc": tuple(path)}], own.get(str(name), {}), (str(name),))
    # A parameter that can be repeated is a list, but its values have no index in the request.
    return one | {"field": str(name)}


def _sentence(request: Request, error: HTTPException) -> str:
    if error.status_code == 404 and error.detail == "Not Found":
        path = request.scope["path"]
        near = path.rstrip("/")
        hint = f"did you mean {near}? " if near != path and is_route(request.scope, near) else ""
        return f"there is nothing at {path}; {hint}GET /docs lists the routes"
    if error.status_code == 405 and error.detail == "Method Not Allowed":
        return f"{request.method} is not possible at {request.scope['path']}; GET /docs lists the routes"
    if isinstance(cause := error.__cause__, RecursionError):
        return "the body is nested too deeply"
    if isinstance(cause, UnicodeDecodeError):
        return f"the body is not UTF-8: {cause.reason} at byte {cause.start}"
    if isinstance(cause, ValueError):
        return "the body has an integer of too many digits"
    return str(error.detail)
