"""Bounds on what users send. Pure.

They guard the master, and are no opinion about training: each lies far above what a cluster of thousands of GPUs needs.
"""

from collections.abc import Sized
from typing import Any

from pydantic import BeforeValidator

MOST = 2**31 - 1
"""The largest number that the database takes for an attempt, a rank or an id."""
MOST_BYTES = 2**63 - 1
"""The largest number that it takes for a size or a step."""


def at_most(count: int) -> BeforeValidator:
    """Refuses a list or an object of more than `count` entries before any of them is looked at.

    pydantic's own `max_length` validates every entry of an object first, and reports each that is wrong.
    """

    def check(given: Any) -> Any:
        if isinstance(given, Sized) and not isinstance(given, str) and len(given) > count:
            raise ValueError(f"it has {len(given)} entries; at most {count} are possible")
        return given

    return BeforeValidator(check)
