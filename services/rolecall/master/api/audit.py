"""`/audit`: who called what. Every call of a user that changes something is noted before it is answered."""

import logging
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.edge.logs import about
from rolecall.master.access import Principal
from rolecall.master.api.auth import Running, action_of, address_of, needs, refusal, target_of
from rolecall.master.program import Master, master_of
from rolecall.master.store import audit
from rolecall.spec.access import AuditEntry, AuditPage
from rolecall.spec.access import Scope as TokenScope
from rolecall.spec.bounds import MAX_INTEGER

router = APIRouter(tags=["access"], dependencies=[Depends(needs(TokenScope.ADMIN))])
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_log = logging.getLogger(__name__)


@router.get("/audit", summary="The audit log")
async def page(
    master: Running,
    after: Annotated[int | None, Query(ge=0, le=MAX_INTEGER, description="Only entries with ids above this.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:
    """Entries with ids above `after`, oldest first; without `after`, the newest ones."""
    async with master.database.read() as connection:
        found = audit.newest(connection, limit) if after is None else audit.since(connection, after, limit)
        return AuditPage(entries=await found)


class Audited:
    """Notes calls of users that change something, and calls that lack a scope, before the answer goes out.

    Nobody hears of a change that the log does not have. Only if the entry can't be stored the answer goes out all the
    same, because what it tells has happened; the master's log then has the entry.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a `send` that notes the outcome first."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                await _note(scope, message)
            await send(message)

        await self._app(scope, receive, noted)


async def _note(scope: Scope, answer: Message) -> None:
    caller: Principal | None = scope.get("state", {}).get("principal")
    if caller is None:
        return  # A stranger, whose refusal is counted already.
    master = master_of(scope["app"])
    status, changes = answer["status"], scope["method"] not in _READING and not scope["path"].startswith("/internal/")
    if status == HTTPStatus.FORBIDDEN or (changes and status >= HTTPStatus.BAD_REQUEST):
        master.sync.refused.note(refusal(scope, caller.name, status))
    elif changes:
        await _add(master, scope, answer, caller)


async def _add(master: Master, scope: Scope, answer: Message, caller: Principal) -> None:
    entry = AuditEntry(
        id=0,
        at=master.clock.now(),
        token=caller.name,
        address=address_of(scope),
        action=action_of(scope),
        target=_target(scope, answer),
        outcome=answer["status"],
    )
    try:
        async with master.database.write() as connection:
            await audit.add(connection, [entry])
    except (SQLAlchemyError, OSError) as error:
        _log.error("not in the audit log (%s): %s", error, entry, extra=about("audit_entry_lost"))


def _target(scope: Scope, answer: Message) -> str:
    """The id or name that the call was about: of what it made, or else of its path."""
    headers: dict[bytes, bytes] = dict(answer.get("headers", ()))
    made = headers.get(b"location", b"").decode(errors="replace").rpartition("/")[2]
    return made[:400] or target_of(scope)
