"""Encodes single rows as ids and numbers. Independent of the service: exported models contain this file unchanged.

All id columns share one id space, the rows of an embedding table. Each column owns [offset, offset + size): the id of
a missing value, the id of an unknown value, then its dictionary values, hash buckets or quantile buckets.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""A column's first ids: missing value, value not seen in training, and the first known value."""


@dataclass(frozen=True)
class IdColumn:
    """An embedded column, in rows [offset, offset + size) of the embedding table."""

    name: str
    kind: str
    """`dictionary`, `hash` or `buckets` (a bucketed numeric column)."""
    offset: int
    size: int
    width: int
    """The maximum number of values in a row; above 1 the column is multi-valued."""
    separator: str | None
    values: list[str]
    """The dictionary values, in the order of their ids."""
    bounds: list[float]
    """The bounds between buckets, ascending; a number equal to a bound belongs to the bucket above."""


@dataclass(frozen=True)
class NumberColumn:
    """A standardized numeric column: (x - mean) / deviation, after x → sign(x) · log(1 + |x|) if `log`."""

    name: str
    mean: float
    deviation: float
    log: bool


def stable_hash(text: str) -> int:
    """A 64-bit hash, the same on every machine and in every version: BLAKE2b of the UTF-8 text, little-endian."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Encoder:
    """Encodes raw rows as in training."""

    def __init__(self, ids: Sequence[IdColumn], numbers: Sequence[NumberColumn], missing: Sequence[str]) -> None:
        self._ids = ids
        self._numbers = numbers
        self._missing = frozenset(missing)
        self._dictionaries = [{text: i for i, text in enumerate(column.values, FIRST)} for column in ids]

    def ids(self, row: dict[str, Any]) -> list[list[int]]:
        """The ids of each id column in a raw row: between 1 and `width` ids."""
        return [
            [column.offset + i for i in self._column_ids(column, dictionary, _get(row, column.name))]
            for column, dictionary in zip(self._ids, self._dictionaries, strict=True)
        ]

    def numbers(self, row: dict[str, Any]) -> list[float]:
        """The standardized numbers of a raw row."""
        return [self._normalized(column, _get(row, column.name)) for column in self._numbers]

    def _column_ids(self, column: IdColumn, dictionary: dict[str, int], given: Any) -> list[int]:
        if column.kind == "buckets":
            number = self._number(given)
            return [MISSING if math.isnan(number) else bisect_right(column.bounds, number) + FIRST]
        texts = self._texts(column, given)
        if column.kind == "hash":
            return [stable_hash(text) % (column.size - FIRST) + FIRST for text in texts] or [MISSING]
        return [dictionary.get(text, UNKNOWN) for text in texts] or [MISSING]

    def _texts(self, column: IdColumn, given: Any) -> list[str]:
        if isinstance(given, str) and column.separator is not None:
            given = given.split(column.separator)
        match given:
            case [*many]:
                pass
            case one:
                many = [one]
        texts = [_text(one).strip() for one in many if one is not None]
        return [text for text in texts if text and text not in self._missing][: column.width]

    def _normalized(self, column: NumberColumn, given: Any) -> float:
        number = self._number(given)
        if column.log:
            number = math.copysign(math.log1p(abs(number)), number)
        return 0.0 if math.isnan(number) else (number - column.mean) / column.deviation

    def _number(self, given: Any) -> float:
        text = given.strip() if isinstance(given, str) else given
        return math.nan if text is None or text == "" or text in self._missing else float(text)


def _get(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"a row has no column {name!r}; use None for a missing value")
    return row[name]


def _text(value: Any) -> str:
    """A value as text, as Arrow formats it in training."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
