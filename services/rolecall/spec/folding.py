"""The events of a job as people read them, on the page and in the command line. Pure."""

from collections.abc import Iterable
from itertools import groupby

from rolecall.spec.api import RETENTION, Event


def folded(events: Iterable[Event]) -> list[tuple[Event, int]]:
    """The events, each with the number of those that follow it and aren't shown.

    Of consecutive events about deleted old checkpoints, only the first is shown.
    """
    runs = groupby(events, key=lambda event: event.kind if event.kind == RETENTION else event.id)
    return [(run[0], len(run) - 1) for run in (list(found) for _, found in runs)]
