"""Who may call: the user's token, the nodes' token, or that of one attempt. All compared in constant time."""

import base64
import binascii
import hmac
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.requests import HTTPConnection
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer

from rolecall.master.core import Master
from rolecall.settings import MasterSettings
from rolecall.spec.token import attempt_token

_bearer = HTTPBearer(auto_error=False, description="`ROLECALL_TOKEN`, or inside the cluster `ROLECALL_NODE_TOKEN`.")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
Password = Annotated[HTTPBasicCredentials | None, Depends(HTTPBasic(auto_error=False))]


_CHALLENGE = 'Bearer realm="rolecall"'
_BROWSERS_CHALLENGE = f'Basic realm="rolecall", {_CHALLENGE}'
_BROWSERS = re.compile("/|/docs(/.*)?|/openapi[.]json")
_OF_ATTEMPT = re.compile("/internal/jobs/(?P<job>[^/]+)/attempts/(?P<attempt>[0-9]{1,10})/.*", re.DOTALL)
_OF_JOB = re.compile("/internal/jobs/[^/]+/blobs/.*", re.DOTALL)
_ATTEMPT_TOKEN = re.compile("[0-9a-f]{64}")
_USERS = "the user's token (ROLECALL_TOKEN)"
_NODES = "the nodes' token (ROLECALL_NODE_TOKEN)"


class Standing(Enum):
    """What the token of a request is worth before the request is read."""

    NONE = auto()
    """No token, or one that does not open this path."""
    PLAUSIBLE = auto()
    """It has the form of a token that opens this path; the route, which takes no body, checks it."""
    PROVEN = auto()
    """It is a token that opens this path."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What is known of a request from its path and its `Authorization` alone."""

    standing: Standing
    wanted: str
    """What opens the path, for people."""
    challenge: str
    """For `WWW-Authenticate`."""
    token: str
    """What was given; empty if nothing was."""


def admission(settings: MasterSettings, path: str, authorization: str) -> Admission:
    """Judge a request by its head. The routes still check which of the tokens they want."""
    if path.startswith("/internal/"):
        given = _bearer_of(authorization)
        node = settings.node_token.get_secret_value()
        return Admission(_standing_inside(node, path, given), _NODES, _CHALLENGE, given)
    browsers = _BROWSERS.fullmatch(path) is not None
    given = _bearer_of(authorization) or (_password_of(authorization) if browsers else "")
    standing = Standing.PROVEN if _equal(given, settings.token.get_secret_value()) else Standing.NONE
    return Admission(standing, _USERS, _BROWSERS_CHALLENGE if browsers else _CHALLENGE, given)


def _standing_inside(node_token: str, path: str, given: str) -> Standing:
    if _equal(given, node_token):
        return Standing.PROVEN
    if found := _OF_ATTEMPT.fullmatch(path):
        expected = attempt_token(node_token, found["job"], int(found["attempt"]))
        return Standing.PROVEN if _equal(given, expected) else Standing.NONE
    # A worker reads blobs of earlier attempts: the path does not say with which attempt's token.
    readable = _OF_JOB.fullmatch(path) and _ATTEMPT_TOKEN.fullmatch(given)
    return Standing.PLAUSIBLE if readable else Standing.NONE


def _bearer_of(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _password_of(authorization: str) -> str:
    scheme, _, encoded = authorization.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode() if scheme.lower() == "basic" else ""
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return text.partition(":")[2]


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def get_master(connection: HTTPConnection) -> Master:
    """The running master."""
    return connection.app.state.master


Running = Annotated[Master, Depends(get_master)]


def require_user(master: Running, bearer: Bearer) -> None:
    """Refuse whoever does not bear the user's token."""
    _require(bearer, master.settings.token.get_secret_value(), _USERS)


def require_reader(master: Running, bearer: Bearer, password: Password) -> None:
    """Refuse whoever shows the user's token neither as a bearer token nor, from a browser, as a password."""
    given = bearer.credentials if bearer else password.password if password else ""
    if not hmac.compare_digest(given.encode(), master.settings.token.get_secret_value().encode()):
        said = "the user's token (ROLECALL_TOKEN) opens this page: as the password, with any name, or as a bearer token"
        raise HTTPException(401, said, {"WWW-Authenticate": _BROWSERS_CHALLENGE})


def require_node(master: Running, bearer: Bearer) -> None:
    """Refuse whoever does not bear the nodes' token."""
    _require(bearer, master.settings.node_token.get_secret_value(), _NODES)


def require_attempt(job: str, attempt: int, master: Running, bearer: Bearer) -> None:
    """Refuse whoever does not bear the token of this attempt."""
    _require(bearer, _attempt_token(master, job, attempt), f"the token of attempt {attempt} of job {job}")


def require_current_attempt(
    job: str, current: int, master: Running, bearer: HTTPAuthorizationCredentials | None
) -> None:
    """The same for the job's current attempt, whichever the path names."""
    _require(bearer, _attempt_token(master, job, current), f"the token of job {job}'s current attempt")


def _attempt_token(master: Master, job: str, attempt: int) -> str:
    return attempt_token(master.settings.node_token.get_secret_value(), job, attempt)


def _require(bearer: HTTPAuthorizationCredentials | None, token: str, what: str) -> None:
    given = bearer.credentials if bearer else ""
    if not hmac.compare_digest(given.encode(), token.encode()):
        problem = "another one was given" if bearer else "none was given"
        raise HTTPException(
            401, f"this call needs {what} as a bearer token; {problem}", {"WWW-Authenticate": _CHALLENGE}
        )
