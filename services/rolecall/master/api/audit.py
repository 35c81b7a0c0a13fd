"""The route `/audit`, and the middleware that records users' calls in the audit log before they are answered."""

import logging
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rolecall.logs import about
from rolecall.master.access import Principal
from rolecall.master.api.auth import Running, action_of, address_of, needs, refusal, target_of
from rolecall.master.api.parameters import CURSOR, accepted_by
from rolecall.master.program import master_of, program_of
from rolecall.master.storage_errors import LeadershipLost
from rolecall.master.store import audit
from rolecall.master.store.cursors import from_cursor, to_cursor
from rolecall.spec.access import AuditEntry, AuditPage
from rolecall.spec.access import Scope as TokenScope
from rolecall.spec.bounds import AwareMoment

router = APIRouter(tags=["access"], dependencies=[Depends(needs(TokenScope.ADMIN))])
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_LOG = logging.getLogger(__name__)


def _id_of(cursor: str) -> int:
    """The id of the last entry before a page. Raises `ValueError`."""
    (last,) = from_cursor(cursor, 1)
    return last


@router.get("/audit", summary="Show the audit log")
async def list_audit(
    master: Running,
    since: Annotated[AwareMoment | None, Query(description="Only entries from this time on.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of entries.")] = 100,
    cursor: Annotated[str | None, accepted_by(_id_of), CURSOR] = None,
) -> AuditPage:
    """Return the entries, newest first."""
    before = None if cursor is None else _id_of(cursor)
    async with master.database.read() as connection:
        found, following = await audit.page(connection, limit, before, since)
    return AuditPage(entries=found, next_cursor=None if following is None else to_cursor([following]))


class Audited:
    """Records calls that change something, and calls that lack a scope, before the response is sent.

    No client learns of a change that the audit log doesn't have. If the entry can't be stored, the response is sent
    nevertheless, because the change is committed. The entry is then in the master's log.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def audited_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                await _note(scope, message)
            await send(message)

        await self._app(scope, receive, audited_send)


async def _note(scope: Scope, answer: Message) -> None:
    caller: Principal | None = scope.get("state", {}).get("principal")
    if caller is None:
        return  # An unauthenticated call, which is counted already.
    status, changes = answer["status"], scope["method"] not in _READING and not scope["path"].startswith("/internal/")
    if status == HTTPStatus.FORBIDDEN or (changes and status >= HTTPStatus.BAD_REQUEST):
        with suppress(LeadershipLost):  # During the call: the response says so.
            master_of(scope["app"]).sync.refused.note(refusal(scope, caller.name, status))
    elif changes:
        await _add(scope, answer, caller)


async def _add(scope: Scope, answer: Message, caller: Principal) -> None:
    # The id or name of the created object, if there is one, or else the one in the path.
    location = dict[bytes, bytes](answer.get("headers", ())).get(b"location", b"")
    created = location.decode(errors="replace").rpartition("/")[2]
    entry = AuditEntry(
        id=0,
        at=program_of(scope["app"]).clock.now(),
        token=caller.name,
        address=address_of(scope),
        action=action_of(scope),
        target=created[:400] or target_of(scope),
        outcome=answer["status"],
    )
    try:
        async with master_of(scope["app"]).database.write() as connection:
            await audit.add(connection, [entry])
    except (SQLAlchemyError, OSError, LeadershipLost) as error:
        _LOG.error("not in the audit log (%s): %s", error, entry, extra=about("audit_entry_lost"))
