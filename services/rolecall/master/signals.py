"""Waking those who wait: a broadcast that no one can miss."""

import asyncio
from contextlib import suppress


class Signal:
    """Something changed. Take a ticket, look, then wait on the ticket: what happens in between is not missed."""

    def __init__(self, *, echo: "Signal | None" = None) -> None:
        self._event = asyncio.Event()
        self._echo = echo
        self.closed = False

    def ticket(self) -> asyncio.Event:
        """An event that the next `notify` sets."""
        return self._event

    def notify(self) -> None:
        """Wake all who wait, here and at the echo."""
        self._event.set()
        if not self.closed:
            self._event = asyncio.Event()
        if self._echo:
            self._echo.notify()

    def close(self) -> None:
        """Wake all who wait, now and from now on: the program ends."""
        self.closed = True
        self.notify()
        if self._echo:
            self._echo.close()


async def wait(ticket: asyncio.Event, timeout_s: float) -> None:
    """Wait for the ticket's event, at most `timeout_s` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await ticket.wait()
