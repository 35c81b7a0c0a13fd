"""The bases of every value that is stored or sent."""

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A frozen value that ignores unknown fields, because programs of neighboring releases share it."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, ser_json_inf_nan="constants")


class Request(Value):
    """A value that a user sends. It refuses fields it does not know: a misspelled name is an error, not a default."""

    model_config = ConfigDict(extra="forbid")
