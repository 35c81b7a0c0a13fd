"""Comments between server-sent events. Without them, nobody notices that a client of a silent job has disconnected."""

import asyncio
from collections.abc import AsyncIterator

from rolecall.master.signals import wait

EVERY_S = 15.0
NOTHING_NEW = b": nothing new\n\n"
"""A comment, which detects clients that have disconnected, and tells them that the stream is alive."""
LOOK_AFTER = 4
"""The number of comments after which a follower looks itself, in case a notification was lost.

A look reads the database, which costs much more than a comment.
"""


async def keep_alive(ticket: asyncio.Event, comments: int = LOOK_AFTER) -> AsyncIterator[bytes]:
    """Wait for the ticket's event, and send up to `comments` comments meanwhile."""
    for _ in range(comments):
        await wait(ticket, EVERY_S)
        if ticket.is_set():
            return
        yield NOTHING_NEW
