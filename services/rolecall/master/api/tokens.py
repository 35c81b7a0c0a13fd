"""The routes `/tokens`: create, list, change, rotate and revoke tokens. Changes take effect immediately."""

from datetime import datetime, timedelta
from secrets import token_urlsafe
from typing import Any

from fastapi import APIRouter, Depends, Response

from rolecall.master.api.auth import Caller, Running, needs
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.headers import with_headers
from rolecall.master.api.parameters import TokenName, merge_patch
from rolecall.master.program import Master
from rolecall.master.store import tokens
from rolecall.master.store.records import SecretRecord, TokenRecord
from rolecall.spec.access import (
    BUILT_IN,
    Rotation,
    Scope,
    TokenDocument,
    TokenList,
    TokenRequest,
    TokenSecret,
    TokenUpdate,
)
from rolecall.spec.errors import Conflict
from rolecall.spec.token import digest_of

router = APIRouter(prefix="/tokens", tags=["access"], dependencies=[Depends(needs(Scope.ADMIN))])
_PREFIX = "rc_"
"""Scanners for leaked secrets recognize tokens by it."""
_BYTES = 32


@router.get("", summary="List the tokens")
async def list_tokens(master: Running) -> TokenList:
    """Return the built-in tokens, then the others by name, without their secrets."""
    async with master.database.read() as connection:
        found = await tokens.list_all(connection)
        secrets = await tokens.secrets(connection)
    now = master.clock.now()
    return TokenList(tokens=[*master.access.built_in, *(_document(token, secrets, now) for token in found)])


@router.post(
    "",
    status_code=201,
    summary="Create a token",
    responses={201: with_headers("Location"), **documented(409)},
)
async def create_token(request: TokenRequest, response: Response, master: Running, caller: Caller) -> TokenSecret:
    """Create a token. Only this response contains its secret."""
    if request.name in BUILT_IN:
        raise Conflict(f"{request.name} is the name of a built-in token; choose another name")
    secret = _new_secret()
    async with master.database.write() as connection:
        await tokens.add(connection, request, digest_of(secret), caller.name, master.clock.now())
    response.headers["Location"] = f"/tokens/{request.name}"
    return TokenSecret(token=await _changed(master, request.name), secret=secret)


@router.patch("/{name}", summary="Change a token", openapi_extra=merge_patch("TokenUpdate"), responses=documented(409))
async def change_token(name: TokenName, request: TokenUpdate, master: Running) -> TokenDocument:
    """Change the token's scopes, limits or expiry. Omitted fields keep their values."""
    _refuse_built_in(name)
    values = {field: getattr(request, field) for field in request.model_fields_set}
    if values.get("scopes", ()) is None:
        del values["scopes"]
    async with master.database.write() as connection:
        await tokens.change(connection, name, values)
    return await _changed(master, name)


@router.post("/{name}/rotate", summary="Rotate a token", responses=documented(409))
async def rotate_token(name: TokenName, request: Rotation, master: Running) -> TokenSecret:
    """Create a new secret. The current one stays valid for `overlap_s` seconds."""
    _refuse_built_in(name)
    secret, now = _new_secret(), master.clock.now()
    until = now + timedelta(seconds=request.overlap_s)
    async with master.database.write() as connection:
        await tokens.rotate(connection, name, digest_of(secret), now, until)
    return TokenSecret(token=await _changed(master, name), secret=secret)


@router.delete("/{name}", status_code=204, summary="Revoke a token", responses=documented(409))
async def revoke_token(name: TokenName, master: Running) -> None:
    """Revoke all secrets of the token immediately. Its jobs continue without its limits, and keep their owner."""
    _refuse_built_in(name)
    async with master.database.write() as connection:
        await tokens.remove(connection, name)
    await master.sync.refresh()
    master.placer.wake()


async def _changed(master: Master, name: str) -> TokenDocument:
    """The current token. The master uses it from now on."""
    await master.sync.refresh()
    master.placer.wake()  # Jobs may fit into other limits.
    async with master.database.read() as connection:
        token = await tokens.get(connection, name)
        return _document(token, await tokens.secrets(connection), master.clock.now())


def _document(token: TokenRecord, secrets: list[SecretRecord], now: datetime) -> TokenDocument:
    valid = [one for one in secrets if one.token == token.name and (one.expires_at is None or one.expires_at > now)]
    expired = token.expires_at is not None and token.expires_at <= now
    shown: dict[str, Any] = {field: getattr(token, field) for field in TokenRecord.__dataclass_fields__}
    shown |= {"scopes": sorted(token.scopes), "secrets": 0 if expired else len(valid)}
    return TokenDocument(**shown)


def _refuse_built_in(name: str) -> None:
    if name in BUILT_IN:
        raise Conflict(f"{name} is built in: change it in the master's settings and restart the master")


def _new_secret() -> str:
    return _PREFIX + token_urlsafe(_BYTES)
