"""Pydantic's errors about a value, in words for those who sent it. Pure."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic_core.core_schema import ErrorType

from rolecall.spec.json_schema import kinds
from rolecall.spec.numbers import bound

WRONG_KIND = "wrong_kind"
"""The type of an error that represents those of all alternatives of a union."""
_OWN = {"value_error": "Value error, ", "assertion_error": "Assertion failed, "}
"""The beginning of the messages of our own validators, and of those of workloads."""
_BOUNDS = {
    "greater_than": "be greater than {gt}",
    "greater_than_equal": "be greater than or equal to {ge}",
    "less_than": "be less than {lt}",
    "less_than_equal": "be less than or equal to {le}",
    "multiple_of": "be a multiple of {multiple_of}",
    "finite_number": "be finite",
    "string_unicode": "be Unicode text",
    "too_short": "have at least {min_length} {unit}",
    "too_long": "have at most {max_length} {unit}",
    "string_too_short": "have at least {min_length} {unit}",
    "string_too_long": "have at most {max_length} {unit}",
}
_OTHER_KINDS = {
    "int_from_float",
    "int_parsing_size",
    "ip_any_network",
    "none_required",
    "timezone_aware",
    WRONG_KIND,
}
_KNOWN = {*get_args(ErrorType), *_OTHER_KINDS, "byte_size", "byte_size_unit"}
"""The types of pydantic's errors. Validators can raise others, with messages of their own."""


def worded(error: Mapping[str, Any], root: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """The message for an error about a value with the schema `schema`."""
    error_type: str = error["type"]
    if own := str(error["msg"]).removeprefix(_OWN[error_type]) if error_type in _OWN else "":
        return own
    if error_type not in _KNOWN:
        return str(error["msg"])
    if error_type in _BOUNDS:
        return f"it must {_bounded(error_type, error)}"
    words = kinds(root, schema) if is_of_kind(error_type) else ""
    return f"it must be {words}" if words else "it is not a valid value"


def _bounded(error_type: str, error: Mapping[str, Any]) -> str:
    context: Mapping[str, Any] = error.get("ctx", {})
    shown = {name: bound(one) if isinstance(one, int | float) else str(one) for name, one in context.items()}
    length = context.get("min_length", context.get("max_length"))
    given = error.get("input")
    unit = ("character" if isinstance(given, str) else "item") + "s" * (length != 1)
    # Pydantic counts the items of lists, but not the characters of texts.
    count = len(given) if isinstance(given, str) and length is not None else context.get("actual_length")
    actual = f", not {bound(count)}" if count is not None else ""
    return _BOUNDS[error_type].format(**shown, unit=unit) + actual


def is_of_kind(error_type: str) -> bool:
    """True for a value of a wrong kind, such as text that is not a number."""
    return error_type.endswith(("_type", "_parsing")) or error_type in _OTHER_KINDS
