"""Middleware that checks the token before the body is read, and limits connections and followed logs per token."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import URL, Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rolecall.edge.connection_table import Group
from rolecall.edge.connections import claim
from rolecall.master.access import Principal
from rolecall.master.api.auth import Admission, admission, is_same_origin, problem_of_token, refusal
from rolecall.master.api.error_handlers import is_route, problem_response
from rolecall.master.api.unauthenticated import UnauthenticatedTurns, received
from rolecall.master.program import master_of
from rolecall.master.sessions import cookie_name
from rolecall.master.store.database import serve_user
from rolecall.spec.access import Scope as Scopes

LOGIN = "/ui/login"
FOLLOWERS = 256
"""The maximum number of logs and event streams that a token follows at a time. Each occupies a connection."""
_MAX_NEXT = 2000
"""The length of the address to which the log-in leads back."""
_HEALTH = "/healthz"
_OPEN = {_HEALTH, LOGIN}
_OPEN_FOLDER = "/ui/static/"
_SAFE = {"GET", "HEAD", "OPTIONS"}
_OF_OPERATORS = {"/readyz", "/metrics"}
_NO = {"0", "false", "f", "no", "n", "off"}


class Gate:
    """Answers 401 to a request without a valid token for its path, before its body is read.

    Requests that it refuses, and those of paths that need no token, take the turns of unauthenticated clients. Health
    checks have turns of their own: behind a proxy, they have the same address as everyone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._unauthenticated = UnauthenticatedTurns()
        self._probes = UnauthenticatedTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_open(scope["path"]):
            if scope["path"].startswith(_OPEN_FOLDER) and admission_of(scope).is_granted:
                await self._app(scope, receive, send)
            elif replayed := await received(receive):
                turns = self._probes if scope["path"] == _HEALTH else self._unauthenticated
                await turns.serve(self._app, scope, replayed, send)
            return
        if scope["type"] == "http":
            found = admission_of(scope)
            if not found.is_granted:
                await self._unauthenticated.serve(partial(_refuse, found), scope, receive, send)
                return
            if found.by_session and scope["method"] not in _SAFE and not is_same_origin(Headers(scope=scope)):
                await _other_site(scope)(scope, receive, send)
                return
            if excess := claim(scope, *_owner(found)):
                # 429 means that the caller itself is the cause. For a worker, that can be others of its job.
                status = 429 if excess.by_owner and found.caller is not None else 503
                detail, headers = f"{excess.detail}; try again", {"Connection": "close"}
                response = problem_response(status, detail, Request(scope), headers=headers)
                await response(scope, receive, send)
                return
            serve_user(is_user=not _is_of_operators(scope["path"], found))
        await self._app(scope, receive, send)


class FollowerLimit:
    """Answers 429 to a token that follows too many logs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._following: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = admission_of(scope).caller if scope["type"] == "http" and _follows(scope) else None
        if caller is None:  # The call follows nothing, or the route answers 401, because no job is accessible.
            await self._app(scope, receive, send)
            return
        # By name, because a token has two secrets while it is rotated.
        token = caller.name
        if self._following[token] >= FOLLOWERS:
            detail = f"this token already follows {FOLLOWERS} logs and events; end some, or read them without `follow`"
            await problem_response(429, detail, Request(scope))(scope, receive, send)
            return
        self._following[token] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._following[token] -= 1
            if not self._following[token]:
                del self._following[token]


def admission_of(scope: Scope) -> Admission:
    """The check of a call's token."""
    request = HTTPConnection(scope)
    authorization = request.headers.get("authorization", "")
    session = request.cookies.get(cookie_name(request.url.scheme), "")
    return admission(master_of(scope["app"]), scope["path"], authorization, session)


def is_open(path: str) -> bool:
    """True for paths that need no token."""
    return path in _OPEN or path.startswith(_OPEN_FOLDER)


def wants_page(scope: Scope) -> bool:
    """True for pages, and for addresses without a route that a browser opens. Programs present a token in a header."""
    headers = Headers(scope=scope)
    if "authorization" in headers:
        return False
    opens = "text/html" in headers.get("accept", "") and "hx-request" not in headers
    return is_of_page(scope["path"]) or (opens and not is_route(scope, scope["path"]))


def is_of_page(path: str) -> bool:
    """True for the pages and their parts."""
    return path in {"/", "/ui"} or path.startswith("/ui/")


def _is_of_operators(path: str, found: Admission) -> bool:
    """True for the calls of nodes, and for those that show whether the master works.

    They are not in the users' share of database connections, so that busy users don't make nodes lost, or the master
    look broken. The code of a job can use its attempt's token as it likes, so workers' calls are users' calls.
    """
    return (found.is_internal and found.caller is not None) or path in _OF_OPERATORS


def _owner(found: Admission) -> tuple[Group, str]:
    """The owner of the request's connection."""
    if found.caller is None:
        return Group.WORKERS, found.job
    if found.is_internal:
        return Group.NODES, ""
    return Group.ADMINS if Scopes.ADMIN in found.caller.scopes else Group.USERS, found.caller.name


async def _refuse(found: Admission, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request whose token, if it has one, does not give access to its path."""
    if found.caller is not None:
        response = _forbidden(scope, found, found.caller)
    else:
        # Browsers are led to the log-in; programs learn that their token is not valid.
        response = _to_login(scope) if wants_page(scope) else _unauthorized(scope, found)
    await response(scope, receive, send)


def _unauthorized(scope: Scope, found: Admission) -> Response:
    how = "as a bearer token, or from a browser as the password" if "Basic" in found.challenge else "as a bearer token"
    problem = problem_of_token(HTTPConnection(scope), found.token)
    master_of(scope["app"]).sync.unauthenticated.note(refusal(scope, None, 401))
    # Close the connection, so that the rest of the body is not read either.
    headers = {"WWW-Authenticate": found.challenge, "Connection": "close"}
    return problem_response(401, f"this call needs {found.wanted} {how}; {problem}", Request(scope), headers=headers)


def _to_login(scope: Scope) -> Response:
    """Send a browser to the page where it logs in, and back to this one afterwards."""
    request = Request(scope)
    is_read = scope["method"] in _SAFE
    # Without the header `Host`, which the client chooses.
    own = str(URL(scope={**scope, "headers": []})) if is_read else "/"
    here = _place_of(request.headers.get("hx-current-url", "")) or _place_of(own)
    # The form that returns it is limited.
    places = map(quote, (here, here.partition("?")[0], "/"))
    url = f"{LOGIN}?next={next(place for place in places if len(place) <= _MAX_NEXT)}"
    # A part of a page, which htmx loads, must not show the log-in.
    is_part = "hx-request" in request.headers
    response = Response(headers={"HX-Redirect": url}) if is_part else RedirectResponse(url, 303)
    if not is_read:
        response.headers["Connection"] = "close"  # The body is not read.
    return response


def _place_of(url: str) -> str:
    """The path and the query of a URL; empty if it is none."""
    try:
        return urlsplit(url)._replace(scheme="", netloc="", fragment="").geturl()
    except ValueError:
        return ""


def _other_site(scope: Scope) -> Response:
    detail = (
        "a session can change something only from the master's own page; programs must send the token as a bearer token"
    )
    return problem_response(403, detail, Request(scope), headers={"Connection": "close"})


def _forbidden(scope: Scope, found: Admission, caller: Principal) -> Response:
    master_of(scope["app"]).sync.refused.note(refusal(scope, caller.name, 403))
    have, want = " and ".join(sorted(caller.scopes)), " or ".join(sorted(found.scopes))
    detail = f"this call needs the scope {want}; the token {caller.name} has {have}"
    return problem_response(403, detail, Request(scope), headers={"Connection": "close"})


def _follows(scope: Scope) -> bool:
    given: Sequence[str] = parse_qs(scope["query_string"].decode("latin-1")).get("follow", ())
    return scope["path"].endswith(("/logs", "/events")) and any(value.lower() not in _NO for value in given)
