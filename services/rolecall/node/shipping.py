"""What workers write, on its way to the master: piece after piece, through every outage of the master."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from rolecall.node.client import MasterClient, MasterFailed, MasterUnreachable
from rolecall.node.contact import Contact
from rolecall.node.logs import Stream
from rolecall.retry import delays_s

_IDLE_S = 0.25
_FAILED_S = 15.0
"""How long to retry a chunk that the master fails to store while it accepts the node's heartbeats."""
_BUSY_S = 600.0
"""The same for a master that is busy, full or waits for its database: it needs time, and says so."""


class Shipper:
    """Sends streams to the master that `contact` is with."""

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
        """Send what the streams get, until cancelled. None of them waits for another."""
        tasks = [asyncio.ensure_future(self._keep_shipping(stream)) for stream in streams]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def ship_all(self, stream: Stream) -> None:
        """Send the rest of a stream that gets no more.

        What the master does not take while it takes heartbeats is given up after a while: a worker's end waits for it.
        """
        while await self._ship(stream, may_give_up=True) or stream.waits:
            if stream.waits:
                await self._sleep(_IDLE_S)

    async def _keep_shipping(self, stream: Stream) -> None:
        while True:
            if not await self._ship(stream):
                await self._sleep(_IDLE_S)

    async def _ship(self, stream: Stream, *, may_give_up: bool = False) -> bool:
        """Send one piece, trying until it arrives; return whether there may be more."""
        begin = self._clock()
        for delay in delays_s():
            try:
                return await stream.ship(self._client)
            except MasterUnreachable as error:
                if may_give_up and self._is_hopeless(error, begin):
                    stream.give_up(error)
                    return False
                await self._sleep(delay)
        raise AssertionError("delays never end")

    def _is_hopeless(self, error: MasterUnreachable, begin: float) -> bool:
        """Whether a piece that is sent since `begin` fails for longer than the master needs, which is not away."""
        if self._contact.answering_since is None:
            return False
        patience_s = _FAILED_S if isinstance(error, MasterFailed) else _BUSY_S
        return self._clock() - max(begin, self._contact.answering_since) > patience_s
