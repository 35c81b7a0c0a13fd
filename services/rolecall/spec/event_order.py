"""The events of a job as people read them, on the page and in the command line. Pure."""

from collections.abc import Collection
from datetime import datetime

from rolecall.spec.api import WORKER, Event


def in_order(events: Collection[Event]) -> list[Event]:
    """The events in the order of their times, oldest first.

    The ids are in the order of arrival at the master. A worker's event can arrive late, but not early. A job's code can
    report any time, so it counts as no later than the master's events that have arrived after it.
    """
    latest: datetime | None = None
    times = dict[int, datetime]()
    for event in sorted(events, key=lambda event: event.id, reverse=True):
        times[event.id] = event.at if latest is None else min(event.at, latest)
        if event.kind != WORKER:
            latest = times[event.id]
    return sorted(events, key=lambda event: (times[event.id], event.id))
