"""Who may call: the user's token, the nodes' token, or that of one attempt. All compared in constant time."""

import hmac
from typing import Annotated

from fastapi import Depends, HTTPException
from fastapi.requests import HTTPConnection
from fastapi.security import HTTPAuthorizationCredentials, HTTPBasic, HTTPBasicCredentials, HTTPBearer

from rolecall.master.core import Master
from rolecall.spec.token import attempt_token

_bearer = HTTPBearer(auto_error=False, description="`ROLECALL_TOKEN`, or inside the cluster `ROLECALL_NODE_TOKEN`.")
Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
Password = Annotated[HTTPBasicCredentials | None, Depends(HTTPBasic(auto_error=False))]


def get_master(connection: HTTPConnection) -> Master:
    """The running master."""
    return connection.app.state.master


Running = Annotated[Master, Depends(get_master)]


def require_user(master: Running, bearer: Bearer) -> None:
    """Refuse whoever does not bear the user's token."""
    _require(bearer, master.settings.token.get_secret_value(), "the user's token (ROLECALL_TOKEN)")


def require_reader(master: Running, bearer: Bearer, password: Password) -> None:
    """Refuse whoever shows the user's token neither as a bearer token nor, from a browser, as a password."""
    given = bearer.credentials if bearer else password.password if password else ""
    if not hmac.compare_digest(given.encode(), master.settings.token.get_secret_value().encode()):
        said = "the user's token (ROLECALL_TOKEN) opens this page: as the password, with any name, or as a bearer token"
        raise HTTPException(401, said, {"WWW-Authenticate": 'Basic realm="rolecall", Bearer realm="rolecall"'})


def require_node(master: Running, bearer: Bearer) -> None:
    """Refuse whoever does not bear the nodes' token."""
    _require(bearer, master.settings.node_token.get_secret_value(), "the nodes' token (ROLECALL_NODE_TOKEN)")


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
            401, f"this call needs {what} as a bearer token; {problem}", {"WWW-Authenticate": 'Bearer realm="rolecall"'}
        )
