"""Bounds on what users send. Pure.

They guard the master, and are no opinion about training: each lies far above what a cluster of thousands of GPUs needs.
"""

from collections.abc import Sized
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator

MOST = 2**31 - 1
"""The largest number that the database takes for an attempt, a rank or an id."""
MOST_BYTES = 2**63 - 1
"""The largest number that it takes for a size or a step."""
MOST_FILES = 100_000
"""Files of a job in the blob store, and of one checkpoint."""


def _in_utc(given: datetime) -> datetime:
    # A year of distance from both ends of `datetime`, so that no time zone leads beyond them.
    if not datetime.min.year < given.year < datetime.max.year:
        raise ValueError("it lies beyond the years 2 to 9998")
    return given.astimezone(UTC)


Moment = Annotated[datetime, AfterValidator(_in_utc)]
"""A point in time in UTC, which the database and every calculation take."""
AwareMoment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""The same, of users: they have to give the time zone."""


def storable(text: str) -> str:
    """`text` as every database takes it: PostgreSQL has no zero character, and half a surrogate has no UTF-8."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


Text = Annotated[str, AfterValidator(storable)]
"""Text that every database takes."""


def at_most(count: int) -> BeforeValidator:
    """Refuses a list or an object of more than `count` entries before any of them is looked at.

    pydantic's own `max_length` validates every entry of an object first, and reports each that is wrong.
    """

    def check(given: Any) -> Any:
        if isinstance(given, Sized) and not isinstance(given, str) and len(given) > count:
            raise ValueError(f"it has {len(given)} entries; at most {count} are possible")
        return given

    return BeforeValidator(check)
