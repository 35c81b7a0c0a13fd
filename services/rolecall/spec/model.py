"""The base classes of all values that are stored or sent."""

from collections.abc import Sized
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import from_json

_MAX_FIELDS = 100
_M = TypeVar("_M", bound=BaseModel)


def parse_untrusted(kind: type[_M], raw: bytes) -> _M:
    """A value from JSON that a job's code can have written. Raises `ValueError`.

    `model_validate_json` would create the Python objects of a wrong value again for each of its errors, which takes
    half a second for 1 MiB.
    """
    try:
        given = from_json(raw)
    except ValueError as error:
        raise ValueError(f"Invalid JSON: {error}") from None
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """The place and the message of an error's first problem. `str` would describe the whole input of each."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, (error.title, *first['loc'][:6])))}: {first['msg']}"


class Value(BaseModel):
    """A frozen value. It ignores unknown fields, because neighboring releases exchange it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="constants")


class Request(Value):
    """A value that a user sends. It rejects unknown fields, so that a misspelled name is an error."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _limit_field_count(cls, given: Any) -> Any:
        # Otherwise the error would list every unknown field.
        if isinstance(given, Sized) and len(given) > _MAX_FIELDS:
            raise ValueError(f"it has {len(given)} fields; it can have {', '.join(cls.model_fields)}")
        return given
