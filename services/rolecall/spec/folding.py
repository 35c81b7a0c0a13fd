"""The events of a job as people read them, on the page and in the command line. Pure."""

from collections.abc import Collection
from datetime import datetime
from itertools import groupby

from rolecall.spec.api import RETENTION, WORKER, Event


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


def folded(events: Collection[Event]) -> list[tuple[Event, int]]:
    """The events, newest first, each with the number of those that follow it and aren't shown.

    Of consecutive events about deleted old checkpoints, only the first is shown.
    """
    runs = groupby(in_order(events)[::-1], key=lambda event: event.kind if event.kind == RETENTION else event.id)
    return [(run[0], len(run) - 1) for run in (list(found) for _, found in runs)]
