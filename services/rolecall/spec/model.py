"""The bases of every value that is stored or sent."""

from collections.abc import Sized
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

_MOST_FIELDS = 100


class Value(BaseModel):
    """A frozen value that ignores unknown fields, because programs of neighboring releases share it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="constants")


class Request(Value):
    """A value that a user sends. It refuses fields it does not know: a misspelled name is an error, not a default."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, given: Any) -> Any:
        """Each unknown field would be reported by itself."""
        if isinstance(given, Sized) and len(given) > _MOST_FIELDS:
            raise ValueError(f"it has {len(given)} fields; it can have {', '.join(cls.model_fields)}")
        return given
