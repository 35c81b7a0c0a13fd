"""The base classes of all values that are stored or sent."""

from collections.abc import Sized
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

_MAX_FIELDS = 100


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
