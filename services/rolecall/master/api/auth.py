"""Authentication and authorization: the caller's principal, the scopes of a route, and access to jobs by owner.

Each route has one of these dependencies. Only `master.access` maps tokens to principals. The dependencies don't block,
so they are coroutines: FastAPI would run plain functions in threads.
"""

import base64
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.requests import HTTPConnection
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.routing import compile_path

from rolecall.master.access import Principal
from rolecall.master.api.parameters import JobId
from rolecall.master.program import Master, master_of
from rolecall.master.refusals import Refusal
from rolecall.master.sessions import cookie_name
from rolecall.master.space import USERS_FLOOR
from rolecall.master.store import jobs
from rolecall.spec.access import Scope
from rolecall.spec.token import attempt_of
from rolecall.spec.visible import one_line

_bearer = HTTPBearer(
    auto_error=False,
    description="`ROLECALL_TOKEN`, or a token of `rolecall tokens create`. "
    "`rolecall local` stores its token in the file `.rolecall/token`.",
)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
Password = Annotated[HTTPBasicCredentials | None, Depends(HTTPBasic(auto_error=False))]
USERS = (Scope.READ, Scope.SUBMIT, Scope.ADMIN)
_CHALLENGE = 'Bearer realm="rolecall"'
_BROWSERS_CHALLENGE = f'Basic realm="rolecall", {_CHALLENGE}'
_BEARER = {"WWW-Authenticate": _CHALLENGE}
_PAGE = {"WWW-Authenticate": _BROWSERS_CHALLENGE}
_BROWSERS = re.compile("/docs(/.*)?|/openapi[.]json")
# A worker can read blobs of earlier attempts, so the path of a blob doesn't identify the attempt of the token.
_OF_WORKER = re.compile("/internal/jobs/(?P<job>[^/]+)/(attempts/(?P<attempt>[0-9]{1,10})|blobs)/.*", re.DOTALL)
_ANYBODY = "a token (ROLECALL_TOKEN, or one of `rolecall tokens create`)"
_NODES = "a token of the nodes (ROLECALL_NODE_TOKEN)"


@dataclass(frozen=True, slots=True)
class Admission:
    """The check of a request by its path, and its `Authorization` header or its session's cookie."""

    wanted: str
    """A description of the tokens that give access to the path."""
    challenge: str
    """The value of `WWW-Authenticate`."""
    token: str
    """The presented token; empty if there is none, or if a session stands for it."""
    caller: Principal | None = None
    """The principal of the token, unless it is the token of an attempt."""
    job: str = ""
    """The job, if it is the token of an attempt."""
    by_session: bool = False
    """True if a browser's session stands for the token."""

    @property
    def is_granted(self) -> bool:
        """True for the token of a job's attempt, and for one with a scope for this part of the API."""
        return bool(self.job) or (self.caller is not None and not self.caller.scopes.isdisjoint(self.scopes))

    @property
    def is_internal(self) -> bool:
        """True if it is a call of a node or worker."""
        return self.wanted == _NODES

    @property
    def scopes(self) -> set[Scope]:
        """The scopes that give access to something in this part of the API."""
        return {Scope.NODE} if self.is_internal else set(Scope) - {Scope.NODE}


def admission(master: Master, path: str, authorization: str, session: str = "") -> Admission:
    """Check a request by its path, its `Authorization` header and its session's cookie.

    The routes check the scopes in addition.
    """
    if path.startswith("/internal/"):
        given = _bearer_of(authorization)
        caller = master.access.principal(given)
        job = "" if caller else _opened_job(master, path, given)
        return Admission(_NODES, _CHALLENGE, given, caller, job)
    browsers = _BROWSERS.fullmatch(path) is not None
    given = _bearer_of(authorization) or (_password_of(authorization) if browsers else "")
    by_session = not authorization and bool(session)
    caller = master.sessions.principal(session) if by_session else master.access.principal(given)
    challenge = _BROWSERS_CHALLENGE if browsers else _CHALLENGE
    return Admission(_ANYBODY, challenge, given, caller, by_session=by_session)


def is_same_origin(headers: Headers) -> bool:
    """Return whether a browser sent the request for a page of this master, and not of another site or port.

    Browsers send `Sec-Fetch-Site` to HTTPS and loopback addresses, and `Origin` with every request that changes
    something.
    """
    if (site := headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    host = headers.get("host", "")
    return bool(host) and headers.get("origin") in {f"http://{host}", f"https://{host}"}


def _opened_job(master: Master, path: str, given: str) -> str:
    """The job to which an attempt's token gives access at this path; empty if it gives no access."""
    found = _OF_WORKER.fullmatch(path)
    attempt = attempt_of(master.signing_key, found["job"], given) if found else None
    if found is None or attempt is None or (found["attempt"] and int(found["attempt"]) != attempt):
        return ""
    return found["job"]


def _bearer_of(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _password_of(authorization: str) -> str:
    scheme, _, encoded = authorization.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode() if scheme.lower() == "basic" else ""
    except ValueError:  # It is neither base64 nor, decoded, UTF-8; or it is not even ASCII.
        return ""
    return text.partition(":")[2]


async def get_master(connection: HTTPConnection) -> Master:
    return master_of(connection.app)


Running = Annotated[Master, Depends(get_master)]


async def authenticate(connection: HTTPConnection, master: Running, bearer: Bearer) -> Principal:
    """Return the caller, and note it for the audit log; 401 without a valid token."""
    return _known(connection, master, bearer.credentials if bearer else None, _BEARER)


async def authenticate_page(
    connection: HTTPConnection, master: Running, bearer: Bearer, password: Password
) -> Principal:
    """Do the same for a page, where a browser presents the token as a password."""
    return _known(connection, master, bearer.credentials if bearer else password and password.password, _PAGE)


Caller = Annotated[Principal, Depends(authenticate)]


def needs(*scopes: Scope) -> Callable[..., Awaitable[None]]:
    """A dependency that answers 403 to callers without any of `scopes`."""

    async def check(caller: Caller) -> None:
        _check_scopes(caller, scopes)

    return check


async def needs_reader(caller: Annotated[Principal, Depends(authenticate_page)]) -> None:
    """A dependency for pages, which any user can read."""
    _check_scopes(caller, USERS)


async def sees_job(job: JobId, master: Running, caller: Caller) -> None:
    """A dependency that answers 404 for jobs that the caller can't see, as for jobs that don't exist."""
    if not caller.reads_all and not caller.sees(await _owner(master, job)):
        raise jobs.unknown(job)


async def controls_job(job: JobId, master: Running, caller: Caller) -> None:
    """A dependency that answers 404 for jobs that the caller can't see, and 403 for jobs that it can't change."""
    owner = await _owner(master, job)
    if not caller.sees(owner):
        raise jobs.unknown(job)
    if not caller.controls(owner):
        detail = f"job {job} belongs to {owner}; only a token of that name or one with the scope admin may change it"
        raise HTTPException(403, detail)


async def has_room(master: Running) -> None:
    """Raise `NoRoom` if the call would use space that is for reports, and for calls that free space.

    Without this, a user who changes jobs all the time could fill the master's volume with rows.
    """
    await master.reserve.check(share=USERS_FLOOR)


async def bearing_attempt(connection: HTTPConnection, job: str, master: Running, bearer: Bearer) -> int:
    """Return the attempt of the job to which the caller's token belongs; 401 without such a token."""
    given = bearer.credentials if bearer else ""
    attempt = attempt_of(master.signing_key, job, given)
    if attempt is None:
        raise _unauthorized(connection, master, f"the token of an attempt of job {job}", given, _BEARER)
    return attempt


Bearing = Annotated[int, Depends(bearing_attempt)]


async def require_attempt(connection: HTTPConnection, job: str, attempt: int, master: Running, held: Bearing) -> None:
    """A dependency that answers 401 to callers without the token of this attempt."""
    if held != attempt:
        given = connection.headers["authorization"]
        raise _unauthorized(connection, master, f"the token of attempt {attempt} of job {job}", given, _BEARER)


def _known(connection: HTTPConnection, master: Master, given: str | None, headers: dict[str, str]) -> Principal:
    caller = master.access.principal(given) if given else None
    if given is None and "authorization" not in connection.headers:
        caller = master.sessions.principal(connection.cookies.get(cookie_name(connection.url.scheme), ""))
    if caller is None:
        raise _unauthorized(connection, master, _ANYBODY, given, headers)
    connection.state.principal = caller
    return caller


def _check_scopes(caller: Principal, scopes: tuple[Scope, ...]) -> None:
    if caller.scopes.isdisjoint(scopes):
        have, want = " and ".join(sorted(caller.scopes)), " or ".join(scopes)
        raise HTTPException(403, f"this call needs the scope {want}; the token {caller.name} has {have}")


def _unauthorized(
    connection: HTTPConnection, master: Master, what: str, given: str | None, headers: dict[str, str]
) -> HTTPException:
    master.sync.unauthenticated.note(refusal(connection.scope, None, 401))
    problem = problem_of_token(connection, given)
    return HTTPException(401, f"this call needs {what} as a bearer token; {problem}", headers)


def problem_of_token(connection: HTTPConnection, given: str | None) -> str:
    """The problem with the token of a refused call, `given` if it could be read."""
    if given:
        return "the one given is not valid"
    return "write it as 'Authorization: Bearer TOKEN'" if "authorization" in connection.headers else "none was given"


def refusal(scope: Any, token: str | None, outcome: int) -> Refusal:
    """The entry of a refused call. Without a valid token it has no target, because clients could choose many."""
    return Refusal(token, address_of(scope), action_of(scope), target_of(scope) if token else "", outcome)


def action_of(scope: Any) -> str:
    """The method and the route of a call, without anything that an unauthenticated client can choose."""
    # A call that is refused early has no route yet.
    route = getattr(scope.get("route"), "path", None)
    if route is None:
        found = (route for route, pattern in _patterns(scope["app"]) if pattern.match(scope["path"]))
        route = next(found, "no route")
    return f"{scope['method']} {route}"[:200]


@lru_cache(maxsize=1)
def _patterns(app: FastAPI) -> list[tuple[str, re.Pattern[str]]]:
    return [(route, compile_path(route)[0]) for route in app.openapi()["paths"]]


def target_of(scope: Any) -> str:
    """The id or name in the path of a call."""
    return one_line("/".join(map(str, scope.get("path_params", {}).values())))[:400]


def address_of(scope: Any) -> str:
    return str(scope["client"][0])[:80] if scope.get("client") else "unknown"


async def _owner(master: Master, job: str) -> str:
    async with master.database.read() as connection:
        return await jobs.owner(connection, job)
