"""Where the master's times come from: made once by the program, handed to its parts, and turned by hand in tests."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Clock:
    """The time of day, for what is stored, and a monotonic time in seconds, for how long something takes.

    Waiting itself is the event loop's, by its own clock.
    """

    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
