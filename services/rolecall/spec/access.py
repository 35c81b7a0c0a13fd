"""The API's data types for tokens and the audit log."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rolecall.spec.bounds import WITHOUT_SPACES, AwareMoment, Priority, matching
from rolecall.spec.model import Request, Value


class Scope(StrEnum):
    """A permission of a token."""

    READ = "read"
    """See everything: all jobs, logs, artifacts, nodes, metrics."""
    SUBMIT = "submit"
    """Submit jobs; see and control the token's own jobs."""
    ADMIN = "admin"
    """Everything users can do, including tokens, the audit log, and others' jobs."""
    METRICS = "metrics"
    """`GET /metrics` only."""
    NODE = "node"
    """The calls of nodes only."""


ADMIN, NODE, METRICS = "admin", "node", "metrics"
"""The names of the built-in tokens, which come from the master's settings."""
BUILT_IN = (ADMIN, NODE, METRICS)
MAX_OVERLAP_S = 30 * 86400.0

Name = Annotated[
    str,
    matching(
        r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$",
        "up to 63 lower-case letters, digits, '-', '_' and '.', with a letter or digit first and last, "
        "such as nightly-ci",
    ),
    WITHOUT_SPACES,
]
Scopes = Annotated[frozenset[Scope], Field(min_length=1, fail_fast=True)]
_Bound = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
_Bytes = Annotated[int, Field(ge=0, le=2**62, strict=True)]


class Limits(Value):
    """Limits for the jobs of one token; null means no limit."""

    max_queued: _Bound | None = None
    """Maximum number of queued or paused jobs."""
    max_slots: _Bound | None = None
    """Maximum number of workers that run at the same time."""
    max_stored_bytes: _Bytes | None = None
    """Maximum total size of the requests, checkpoints and artifacts of the token's jobs."""
    max_priority: Priority | None = None
    """Maximum priority that the token can give to a job."""


class TokenRequest(Limits, Request):
    """The body of `POST /tokens`."""

    name: Name
    """The owner of the jobs that the token submits. Lowercase letters, digits, `.`, `_`, `-`."""
    scopes: Scopes
    expires_at: AwareMoment | None = None
    """The token's expiry; null means never. Its limits apply to its jobs even after that."""


class TokenUpdate(Limits, Request):
    """The body of `PATCH /tokens/{name}`. An omitted field keeps its value; null removes a limit."""

    scopes: Scopes | None = None
    expires_at: AwareMoment | None = None


class Rotation(Request):
    """The body of `POST /tokens/{name}/rotate`."""

    overlap_s: float = Field(default=0.0, ge=0, le=MAX_OVERLAP_S)
    """Seconds for which the current secret stays valid in addition to the new one."""


class TokenDocument(Limits):
    """A token in `GET /tokens`, without its secret."""

    name: str
    scopes: list[Scope]
    built_in: bool = False
    """True if it comes from the master's settings, so that it can't be changed here."""
    secrets: int = 1
    """The number of valid secrets: two during a rotation, none after the token has expired."""
    created_at: datetime | None = None
    created_by: str | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """Rounded to minutes; null if the token has never been used."""


class TokenSecret(Value):
    """The response to `POST /tokens` and `…/rotate`, the only ones that contain the secret."""

    token: TokenDocument
    secret: str = Field(repr=False)


class TokenList(Value):
    """`GET /tokens`."""

    tokens: list[TokenDocument]


class AuditEntry(Value):
    """One call in the audit log."""

    id: int
    at: datetime
    token: str | None
    """The name of the token; null if the call had no valid token."""
    address: str
    """The client's address; behind a proxy, the address of the proxy."""
    action: str
    """The method and the route, such as `POST /jobs/{job}/cancel`."""
    target: str
    """The object of the call, such as the id of the job."""
    outcome: int
    """The HTTP status of the response."""
    count: int = 1
    """The number of calls that the entry represents: similar refused calls share an entry."""


class AuditPage(Value):
    """A page of `GET /audit`, newest first."""

    entries: list[AuditEntry]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null on the last one.")
