"""Cursors: the place in a list after which its next page begins, as text. Users treat them as opaque. Pure."""

import re
from collections.abc import Sequence

from rolecall.spec.bounds import MAX_INTEGER

_NUMBERS = re.compile(r"-?[0-9]{1,10}(:-?[0-9]{1,10})*", re.ASCII)


def to_cursor(place: Sequence[int]) -> str:
    """The cursor of a place, which consists of the values that order the list."""
    return ":".join(map(str, place))


def from_cursor(cursor: str, length: int) -> tuple[int, ...]:
    """The place of a cursor; raises `ValueError` unless it is one of a list that `length` values order."""
    place = tuple(map(int, cursor.split(":"))) if _NUMBERS.fullmatch(cursor) else ()
    if len(place) != length or any(abs(value) > MAX_INTEGER for value in place):
        raise ValueError("it is not a cursor of this list")
    return place
