"""Curves in a terminal, of Braille characters: 2 × 4 dots in each. Pure."""

import math
from collections.abc import Sequence
from itertools import pairwise

from rolecall.spec.numbers import number

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_EMPTY = 0x2800
_BARS = "▁▂▃▄▅▆▇█"
_MIN_WIDTH, _LABEL = 8, 9


def plot(points: Sequence[tuple[float, float]], width: int, height: int) -> list[str]:
    """The curve through the points (x, y), as `height` lines of at most `width` characters, and a line with its ends.

    The lines at the top and the bottom have the largest and the smallest value. Without finite points, there is a note.
    """
    finite = sorted((x, y) for x, y in points if math.isfinite(x) and math.isfinite(y))
    if not finite:
        return ["no values yet"]
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    room = max(_LABEL, len(number(low)), len(number(high)))
    columns = max(_MIN_WIDTH, width - room - 2)
    rows = _rows(_levels(finite, columns * 2, low, high, height * 4), columns, height)
    labels = {0: number(high), height - 1: number(low)} if high > low else {height // 2: number(high)}
    first, last = f"{finite[0][0]:g}", f"{finite[-1][0]:g}"
    axis = first if len(finite) == 1 else f"{first}{last:>{columns - len(first)}}"
    return [f"{labels.get(at, ''):>{room}} ┤{row}" for at, row in enumerate(rows)] + [f"{'step':>{room}}  {axis}"]


def sparkline(values: Sequence[float], width: int) -> str:
    """The values in one line of at most `width` characters: the mean of each part of them."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    parts = [finite[len(finite) * at // count : len(finite) * (at + 1) // count] for at in range(count)]
    means = [math.fsum(value / len(part) for value in part) for part in parts]
    low, high = min(means), max(means)
    return "".join(_BARS[_level(mean, low, high, len(_BARS))] for mean in means)


def _levels(points: Sequence[tuple[float, float]], columns: int, low: float, high: float, rows: int) -> list[range]:
    """The dots of each column, counted from the bottom: from the value before to the column's own values."""
    first, last = points[0][0], points[-1][0]
    found: list[list[int]] = [[] for _ in range(columns)]
    for x, y in points:
        found[_level(x, first, last, columns)].append(_level(y, low, high, rows))
    levels, before = list[range](), None
    for column in _bridged(found):
        reached = [*column, before] if before is not None and column else column
        levels.append(range(min(reached), max(reached) + 1) if reached else range(0))
        before = column[-1] if column else before
    return levels


def _bridged(columns: list[list[int]]) -> list[list[int]]:
    """The columns with straight lines over those that have no values, between those that have some."""
    filled = [at for at, column in enumerate(columns) if column]
    for left, right in pairwise(filled):
        begin, end = columns[left][-1], columns[right][0]
        for at in range(left + 1, right):
            columns[at] = [round(begin + (end - begin) * (at - left) / (right - left))]
    return columns


def _level(value: float, low: float, high: float, count: int) -> int:
    """The part of `count` equal parts of the range in which the value is; the middle one of an empty range."""
    # Halved, because the difference of large numbers can be infinite. The halves of tiny numbers can be equal.
    half = high / 2 - low / 2
    if half <= 0:
        return count // 2
    share = (value / 2 - low / 2) / half
    return min(count - 1, int(share * count))


def _rows(levels: Sequence[range], columns: int, height: int) -> list[str]:
    cells = [[_EMPTY] * columns for _ in range(height)]
    for at, column in enumerate(levels):
        for level in column:
            row, dot = divmod(height * 4 - 1 - level, 4)
            cells[row][at // 2] |= _DOTS[dot][at % 2]
    return ["".join(map(chr, row)).rstrip(chr(_EMPTY)) for row in cells]
