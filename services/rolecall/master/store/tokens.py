"""Tokens: their names, scopes and limits, and the digests of their secrets."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.records import SecretRecord, TokenRecord, read, readable
from rolecall.master.store.schema import token_secrets, tokens
from rolecall.spec.access import TokenRequest
from rolecall.spec.errors import Conflict, NotFound


async def add(connection: AsyncConnection, request: TokenRequest, digest: str, by: str, now: datetime) -> None:
    """Store a token with its first secret. Raises `Conflict` if the name exists."""
    try:
        await connection.execute(insert(tokens).values(**request.model_dump(), created_at=now, created_by=by))
    except IntegrityError:
        raise Conflict(f"there is a token {request.name!r} already; rotate or revoke it") from None
    await _add_secret(connection, request.name, digest, now)


async def get(connection: AsyncConnection, name: str) -> TokenRecord:
    """The token. Raises `NotFound`."""
    row = (await connection.execute(select(tokens).where(tokens.c.name == name))).one_or_none()
    if row is None:
        raise unknown(name)
    return read(TokenRecord, row)


async def lock(connection: AsyncConnection, name: str) -> None:
    """Prevent other transactions from checking the token's limits until this one ends (SQLite has one writer)."""
    await connection.execute(select(tokens.c.name).where(tokens.c.name == name).with_for_update())


async def list_all(connection: AsyncConnection) -> list[TokenRecord]:
    """All readable tokens, sorted by name. An unreadable token is invalid."""
    rows = await connection.execute(select(tokens).order_by(tokens.c.name))
    return list(readable(rows, lambda row: read(TokenRecord, row), "token"))


async def secrets(connection: AsyncConnection) -> list[SecretRecord]:
    columns = [token_secrets.c[name] for name in ("token", "created_at", "digest", "expires_at")]
    rows = await connection.execute(select(*columns))
    return list(readable(rows, lambda row: read(SecretRecord, row), "secret of token"))


async def change(connection: AsyncConnection, name: str, values: Mapping[str, Any]) -> None:
    """Change a token's scopes, limits or expiry. Raises `NotFound`."""
    await get(connection, name)
    if values:
        await connection.execute(update(tokens).where(tokens.c.name == name).values(**values))


async def rotate(connection: AsyncConnection, name: str, digest: str, now: datetime, until: datetime) -> None:
    """Add a new secret. The previous one stays valid until `until`; older ones are removed."""
    await get(connection, name)
    of_token = token_secrets.c.token == name
    newest = select(token_secrets.c.digest).where(of_token).order_by(token_secrets.c.created_at.desc()).limit(1)
    previous = await connection.scalar(newest)
    await connection.execute(delete(token_secrets).where(of_token, token_secrets.c.digest != previous))
    if until <= now:
        await connection.execute(delete(token_secrets).where(of_token))
    else:
        longer = or_(token_secrets.c.expires_at.is_(None), token_secrets.c.expires_at > until)
        await connection.execute(update(token_secrets).where(of_token, longer).values(expires_at=until))
    await _add_secret(connection, name, digest, now)


async def remove(connection: AsyncConnection, name: str) -> None:
    """Revoke a token with all its secrets. Raises `NotFound`."""
    if (await connection.execute(delete(tokens).where(tokens.c.name == name))).rowcount != 1:
        raise unknown(name)


async def set_used(connection: AsyncConnection, used: Mapping[str, datetime]) -> None:
    """Store the last uses of tokens."""
    for name, at in used.items():
        await connection.execute(update(tokens).where(tokens.c.name == name).values(last_used_at=at))


def unknown(name: str) -> NotFound:
    return NotFound(f"there is no token {name!r}; `rolecall tokens list` lists them")


async def _add_secret(connection: AsyncConnection, name: str, digest: str, now: datetime) -> None:
    await connection.execute(insert(token_secrets).values(digest=digest, token=name, created_at=now))
