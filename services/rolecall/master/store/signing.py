"""The master's signing key, from which it derives the tokens of attempts."""

import secrets

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.store.database import Database
from rolecall.master.store.schema import signing_key


async def load_key(database: Database) -> str:
    """The key: 256 random bits in hexadecimal, created at the first start."""
    # Another master can create the key at the same time; the table accepts one row.
    return await database.with_retry(_load_or_make)


async def _load_or_make(connection: AsyncConnection) -> str:
    found = await connection.scalar(select(signing_key.c.value))
    if found is not None:
        return found
    made = secrets.token_hex(32)
    await connection.execute(insert(signing_key).values(id=1, value=made))
    return made
