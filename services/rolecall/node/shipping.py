"""The transfer of the workers' output to the master, with retries while the master is unavailable."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from rolecall.node.client import MasterClient, MasterFailed, MasterUnreachable
from rolecall.node.contact import Contact
from rolecall.node.logs import Stream
from rolecall.retry import delays_s

_IDLE_S = 0.25
_FAILED_S = 15.0
"""The time for retries of a chunk that the master fails to store while it accepts the node's heartbeats."""
_BUSY_S = 600.0
"""The same for a master that is busy, full or waits for its database, and that reports it."""


class Shipper:
    """Sends streams to the master."""

    def __init__(
        self,
        client: MasterClient,
        contact: Contact,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._contact = contact
        self._clock = clock
        self._sleep = sleep

    async def keep_shipping(self, streams: Sequence[Stream]) -> None:
        """Send the streams in parallel as they grow, until cancelled."""
        tasks = [asyncio.ensure_future(self._keep_shipping(stream)) for stream in streams]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def ship_all(self, stream: Stream) -> None:
        """Send the rest of a stream that no longer grows.

        If the master refuses a chunk but accepts heartbeats, the stream is abandoned after a while, because the report
        of the worker's end waits for it.
        """
        while await self._ship(stream, may_give_up=True) or stream.waits:
            if stream.waits:
                await self._sleep(_IDLE_S)

    async def _keep_shipping(self, stream: Stream) -> None:
        while True:
            if not await self._ship(stream):
                await self._sleep(_IDLE_S)

    async def _ship(self, stream: Stream, *, may_give_up: bool = False) -> bool:
        """Send one chunk, with retries; return whether there may be more."""
        begin = self._clock()
        for delay in delays_s():
            try:
                return await stream.ship(self._client)
            except MasterUnreachable as error:
                timeout_s = _FAILED_S if isinstance(error, MasterFailed) else _BUSY_S
                since = self._contact.answering_since
                if may_give_up and since is not None and self._clock() - max(begin, since) > timeout_s:
                    stream.give_up(error)
                    return False
                await self._sleep(delay)
        raise AssertionError("delays never end")
