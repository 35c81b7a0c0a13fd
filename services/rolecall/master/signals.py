"""Broadcasts that wake waiting tasks.

Take a ticket, read the state, then wait for the ticket: no change in between is missed.
"""

import asyncio
from contextlib import suppress
from weakref import WeakValueDictionary


class Signal:
    """A signal that something has changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        """An event that the next `notify` sets."""
        return self._event

    def notify(self) -> None:
        """Wake all waiting tasks."""
        self._event.set()
        self._event = asyncio.Event()


class Signals:
    """A signal for each key, for example each job. A key without tickets uses no memory."""

    def __init__(self) -> None:
        self._events: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self.closed = False

    def __len__(self) -> int:
        """The number of keys with tickets."""
        return len(self._events)

    def ticket(self, key: str) -> asyncio.Event:
        """An event that the next `notify` of `key` sets. It exists as long as a waiting task refers to it."""
        event = self._events.setdefault(key, asyncio.Event())
        if self.closed:
            event.set()
        return event

    def notify(self, *keys: str) -> None:
        """Wake the tasks with a ticket for one of `keys`."""
        for key in keys:
            if (event := self._events.pop(key, None)) is not None:
                event.set()

    def close(self) -> None:
        """Wake all waiting tasks, now and in the future, because the program ends."""
        self.closed = True
        self.notify(*self._events)


async def wait(ticket: asyncio.Event, timeout_s: float) -> None:
    """Wait for the ticket's event, at most `timeout_s` seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, timeout_s)):
            await ticket.wait()
