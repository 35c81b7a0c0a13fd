"""Tokens as users see and ask for them: names, scopes, limits."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rolecall.spec.bounds import AwareMoment
from rolecall.spec.model import Request, Value


class Scope(StrEnum):
    """What a token may do."""

    READ = "read"
    """See everything: all jobs, logs, artifacts, nodes, metrics."""
    SUBMIT = "submit"
    """Submit jobs; see and steer the token's own jobs."""
    ADMIN = "admin"
    """Everything users can do, including tokens, the audit log, and others' jobs."""
    METRICS = "metrics"
    """`GET /metrics` only."""
    NODE = "node"
    """The calls of nodes only."""


ADMIN, NODE, METRICS = "admin", "node", "metrics"
"""The names of the built-in tokens, which come from the master's settings."""
BUILT_IN = (ADMIN, NODE, METRICS)
MOST_OVERLAP_S = 30 * 86400.0

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
Scopes = Annotated[frozenset[Scope], Field(min_length=1)]
_Bound = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
_Bytes = Annotated[int, Field(ge=0, le=2**62, strict=True)]


class Limits(Value):
    """What the jobs of one token may take; null means no limit."""

    max_queued: _Bound | None = None
    """Jobs that wait: queued or paused."""
    max_slots: _Bound | None = None
    """Workers that run at once."""
    max_stored_bytes: _Bytes | None = None
    """Bytes of the checkpoints and artifacts of the token's jobs."""


class TokenRequest(Limits, Request):
    """The body of `POST /tokens`."""

    name: Name
    """The owner of the jobs that the token submits. Lowercase letters, digits, `.`, `_`, `-`."""
    scopes: Scopes
    expires_at: AwareMoment | None = None
    """When the token stops being valid; null means never. Its limits still apply to its jobs then."""


class TokenUpdate(Limits, Request):
    """The body of `PATCH /tokens/{name}`. A field that is left out keeps its value; null removes a limit."""

    scopes: Scopes | None = None
    expires_at: AwareMoment | None = None


class Rotation(Request):
    """The body of `POST /tokens/{name}/rotate`."""

    overlap_s: float = Field(default=0.0, ge=0, le=MOST_OVERLAP_S)
    """Seconds for which the present secret stays valid beside the new one."""


class TokenDocument(Limits):
    """A token as `GET /tokens` shows it, without its secret."""

    name: str
    scopes: list[Scope]
    built_in: bool = False
    """Whether it comes from the master's settings, so that it can't be changed here."""
    secrets: int = 1
    """How many secrets are valid: two while the token is rotated, none after it expired."""
    created_at: datetime | None = None
    created_by: str | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute; null if it was never used."""


class TokenSecret(Value):
    """The answer to `POST /tokens` and `…/rotate`: the only one that has the secret."""

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
    """The name of the token; null if the call had none that is valid."""
    address: str
    """Where the call came from: behind a proxy, the proxy."""
    action: str
    """The method and the route, such as `POST /jobs/{job}/cancel`."""
    target: str
    """What the call was about, such as the id of the job."""
    outcome: int
    """The HTTP status of the answer."""
    count: int = 1
    """How many calls the entry stands for: refused calls of one kind share an entry."""


class AuditPage(Value):
    """`GET /audit`, oldest first."""

    entries: list[AuditEntry]
