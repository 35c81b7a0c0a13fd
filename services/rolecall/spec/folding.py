"""The events of a job as people read them, on the page and in the command line. Pure."""

from collections.abc import Iterable
from itertools import groupby

from rolecall.spec.api import RETENTION, Event


def folded(events: Iterable[Event]) -> list[tuple[Event, int]]:
    """The events, newest first, each with the number of those that follow it and aren't shown.

    The ids are in the order of arrival at the master, and what a worker reports can arrive late. Of consecutive events
    about deleted old checkpoints, only the first is shown.
    """
    newest_first = sorted(events, key=lambda event: (event.at, event.id), reverse=True)
    runs = groupby(newest_first, key=lambda event: event.kind if event.kind == RETENTION else event.id)
    return [(run[0], len(run) - 1) for run in (list(found) for _, found in runs)]
