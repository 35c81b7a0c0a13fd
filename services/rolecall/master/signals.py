"""Waking those who wait: broadcasts that no one can miss.

Take a ticket, look, then wait on the ticket: what happens in between is not missed.
"""

import asyncio
from contextlib import suppress
from weakref import WeakValueDictionary


class Signal:
    """Something changed, of one kind."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        """An event that the next `notify` sets."""
        return self._event

    def notify(self) -> None:
        """Wake all who wait."""
        self._event.set()
        self._event = asyncio.Event()


class Signals:
    """A signal for each key, e.g. for each job. A key that nobody has a ticket for costs nothing."""

    def __init__(self) -> None:
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self.closed = False

    def __len__(self) -> int:
        """The number of keys that somebody has a ticket for."""
        return len(self._events)

    def ticket(self, key: str) -> asyncio.Event:
        """An event that the next `notify` of `key` sets. Whoever waits holds it: it is gone with the last of them."""
        event = self._events.get(key)
        if event is None:
            event = self._events[key] = asyncio.Event()
        if self.closed:
            event.set()
        return event

    def notify(self, *keys: str) -> None:
        """Wake all who have a ticket for one of `keys`, and nobody else."""
        for key in keys:
            if (event := self._events.pop(key, None)) is not None:
                event.set()

    def close(self) -> None:
        """Wake all who wait, now and from now on: the program ends."""
        self.closed = True
        self.notify(*self._events)


async def wait(ticket: asyncio.Event, timeout_s: float) -> None:
    """Wait for the ticket's event, at most `timeout_s` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await ticket.wait()
