"""What workers write, on its way to the master: piece after piece, through every outage of the master."""

import asyncio
from collections.abc import Sequence

from rolecall.node.backoff import delays_s
from rolecall.node.client import MasterClient, MasterUnreachable
from rolecall.node.logs import Stream

_IDLE_S = 0.25


async def keep_shipping(client: MasterClient, streams: Sequence[Stream]) -> None:
    """Send what the streams get, until cancelled."""
    while True:
        if not any([await _ship(client, stream) for stream in streams]):
            await asyncio.sleep(_IDLE_S)


async def ship_all(client: MasterClient, stream: Stream) -> None:
    """Send the rest of a stream that gets no more."""
    while await _ship(client, stream) or stream.waits:
        if stream.waits:
            await asyncio.sleep(_IDLE_S)


async def _ship(client: MasterClient, stream: Stream) -> bool:
    """Send one piece, trying until it arrives; return whether there may be more."""
    for delay in delays_s():
        try:
            return await stream.ship(client)
        except MasterUnreachable:
            await asyncio.sleep(delay)
    raise AssertionError("delays never end")
