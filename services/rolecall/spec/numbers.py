"""Texts of numbers and sizes, the same on the page and in the command. Pure."""

import math

NOT_FINITE = "not finite"
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: object) -> str:
    """An integer, or a number from 1000 on, without decimals, such as `12,345`; a smaller number with four significant
    digits, such as `0.9200`, and one from 10^9 on too, such as `3.246e+15`; other values as they are.

    JSON has null for a number that isn't finite, so None is `not finite`.
    """
    if value is None:
        return NOT_FINITE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"  # It can be too large for a float.
    if abs(value) < 1e9 and (value.is_integer() or abs(value) >= 1000):
        return f"{value + 0:,.0f}"  # Without the sign of -0.0.
    return f"{value:#.4g}".removesuffix(".")


def bound(value: float) -> str:
    """A bound, such as `16,384`; large powers of 2 and 10, which are limits of types and formats, such as `2^24`."""
    size = abs(value)
    for base, least in ((2, 20), (10, 9)):
        power = round(math.log(size, base)) if base**least - 1 <= size <= 1e308 else 0
        if power and size in {base**power, float(base**power)}:
            return f"{'-' * (value < 0)}{base}^{power}"
        if power and base == 2 and value == 2**power - 1:
            return f"2^{power} - 1"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}"


def counted(count: int, thing: str) -> str:
    """A number of things with a regular plural, such as `1 row`, `4,000 rows` or `2 micro-batches`."""
    return f"{count:,} {thing}{'' if count == 1 else 'es' if thing.endswith('ch') else 's'}"


def size(value: int) -> str:
    """Such as `3.2 MiB`."""
    amount, place = float(value), 0
    while amount >= 1024 and place < len(_BYTES) - 1:
        amount, place = amount / 1024, place + 1
    return f"{amount:.1f} {_BYTES[place]}" if place else f"{value} B"
