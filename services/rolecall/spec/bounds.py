"""Bounds on input from users. Pure.

They protect the master. Each is far above what a cluster of thousands of GPUs needs.
"""

import re
from collections.abc import Sized
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

_NUMBER = re.compile(r"\s*[+-]?\.?\d[\d_.]*(e[+-]?\d+)?\s*", re.IGNORECASE)
MAX_INTEGER = 2**31 - 1
"""The largest attempt, rank or id that the database can store."""
MAX_BIGINT = 2**63 - 1
"""The largest size or step that the database can store."""
MAX_FILES = 100_000
"""The maximum number of files of a job in the blob store."""
MAX_PARTS = 10_000
"""The maximum number of files of one new checkpoint. The master reads all of them at once, each in 5 µs."""
PARTS_PER_WORKER = 16
"""The maximum number of files of one new checkpoint for each worker of the gang, on average."""
MAX_ATTEMPTS = 1000
"""The number of attempts after which a job can't be resumed or retried. Documents and pages read all of them."""
MAX_ARTIFACTS = 1000
"""The maximum number of artifacts of a job."""
MAX_PRIORITY = 100
RULE = "x-rule"
"""The keyword of a JSON schema with the rule of its `pattern` in words."""


def _in_utc(given: datetime) -> datetime:
    # The first and the last year of `datetime` are excluded, because conversion to UTC could leave its range.
    if not datetime.min.year < given.year < datetime.max.year:
        raise ValueError("the time must be in the years 2 to 9998")
    return given.astimezone(UTC)


def _not_a_number(given: Any) -> Any:
    # Pydantic takes numbers as seconds or milliseconds since 1970, depending on their size.
    if isinstance(given, int | float) or (isinstance(given, str) and _NUMBER.fullmatch(given)):
        raise ValueError("the time must have a date and a zone, such as 2026-01-31T18:00:00Z")
    return given


Moment = Annotated[datetime, AfterValidator(_in_utc)]
"""A point in time in UTC, for the database and all calculations."""
AwareMoment = Annotated[AwareDatetime, BeforeValidator(_not_a_number), AfterValidator(_in_utc)]
"""The same for input from users, which must have a time zone."""


def is_text(value: str) -> bool:
    """False if it has half of a surrogate pair, which JSON can contain, but which is not a character."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def storable(text: str) -> str:
    """`text` without null characters and lone surrogates, which PostgreSQL and UTF-8 can't represent."""
    return text.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY, strict=True)]
"""The priority of a job. Jobs with a higher priority start first."""
Text = Annotated[str, AfterValidator(storable)]
"""Text that every database can store."""


def at_most(count: int) -> BeforeValidator:
    """A validator that rejects a list or an object with more than `count` entries before it validates any of them.

    pydantic's `max_length` first validates all entries of an object, and reports each invalid one.
    """

    def check(given: Any) -> Any:
        if isinstance(given, Sized) and not isinstance(given, str) and len(given) > count:
            raise ValueError(f"it has {len(given)} entries; at most {count} are allowed")
        return given

    return BeforeValidator(check)


def _without_spaces(given: Any) -> Any:
    if isinstance(given, str) and " " in given:
        raise ValueError("it has a space")
    return given


WITHOUT_SPACES = BeforeValidator(_without_spaces)
"""Explains the most frequent mistake in a text whose pattern allows no spaces; other texts pass."""


def matching(pattern: str, rule: str) -> Any:
    """A pattern for a text. `rule` says in words which texts are valid; errors have it instead of the pattern."""
    return Field(pattern=pattern, json_schema_extra={RULE: rule})
