"""Limits on the size and depth of a job's parameters, checked before the workload's own rules. Pure.

Parameters within the limits are strict JSON, and small enough that every part of Rolecall can store, send and show them
without delay.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, cast

from rolecall.master.field_errors import FieldError, field_error
from rolecall.spec.bounds import is_text

MAX_VALUES = 50_000
"""The maximum number of values at all depths; 1 MiB of text could contain ten times as many."""
MAX_DEPTH = 32
MAX_KEY_CHARS = 1000
_INTEGERS = range(-(2**63), 2**64)
_Container = dict[Any, Any] | list[Any]
_Path = tuple[Any, ...]
"""The path to a value: (path to its container, key). It must be cheap: a request can hold thousands of containers."""


def check_extent(params: Mapping[str, Any]) -> list[FieldError]:
    """The first field error of `params` with these limits; empty if there is none."""
    return list(islice(_errors_of(params), 1))


def _errors_of(params: Mapping[str, Any]) -> Iterator[FieldError]:
    waiting: list[tuple[_Path, int, _Container]] = [(("params",), 0, dict(params))]
    count = 0
    while waiting:
        path, depth, value = waiting.pop()
        count += len(value)
        if count > MAX_VALUES:
            yield field_error("params", "it holds too many values", f"{count} or more", f"at most {MAX_VALUES:,}")
            return
        if depth == MAX_DEPTH:
            yield field_error(_name(path), "it is nested too deeply", value, f"at most {MAX_DEPTH} levels")
        entries: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            if isinstance(key, str) and (len(key) > MAX_KEY_CHARS or not is_text(key)):
                message = "the name of a field is too long, or has half of a surrogate pair"
                yield field_error(_name(path), message, key, f"Unicode text of at most {MAX_KEY_CHARS:,} characters")
            if isinstance(entry, dict | list):
                if entry:  # A request can hold MAX_VALUES empty containers, and they have nothing to check.
                    waiting.append(((path, key), depth + 1, cast(_Container, entry)))
            elif why := _flaw(entry):
                yield field_error(_name((path, key)), why[0], entry, why[1])


def _flaw(value: Any) -> tuple[str, str] | None:
    """The error of a single value, and the valid values."""
    if isinstance(value, str) and not is_text(value):
        return "it has half of a surrogate pair, which is not a character", "Unicode text"
    if isinstance(value, float) and not math.isfinite(value):
        return "it is not finite", "a number; leave the field out, or use null, for none"
    if isinstance(value, int) and value not in _INTEGERS:
        return "it does not fit into 64 bits", "an integer from -2^63 to 2^64 - 1"
    return None


def _name(path: _Path) -> str:
    parts: list[str] = []
    while len(path) == 2:
        path, part = path
        parts.append(str(part))
    return ".".join([path[0], *reversed(parts)])
