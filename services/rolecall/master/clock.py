"""The clock of the master. The program creates it for all its parts; tests control it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """The time of day for stored values, and a monotonic time in seconds for durations.

    Waiting uses the event loop's clock.
    """

    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
