# pyright: standard
"""Errors are in the words of those who send values, never in those of the library that checks them."""

from typing import Annotated, Any, cast

import pytest
from pydantic import BaseModel, ByteSize, Field, IPvAnyNetwork, SecretStr, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError, _pydantic_core

from rolecall.spec.value_errors import worded

KNOWN: list[dict[str, Any]] = cast(Any, _pydantic_core).list_all_errors()


class Job(BaseModel):
    """An object."""


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known["type"])
@pytest.mark.parametrize("schema", [{}, {"type": "integer"}], ids=["any", "integer"])
def test_no_error_has_the_words_of_the_library(known: dict[str, Any], schema: dict[str, Any]) -> None:
    context = (known["example_context"] or {}) | {"error": "own words"}
    message = known["message_template_python"].format(**context | {"expected_plural": "s"})
    said = worded({"type": known["type"], "msg": message, "input": None, "ctx": context}, schema, schema)
    assert said == "own words" or said.startswith(("it must be ", "it must have at ", "it is not a valid value"))


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (Annotated[int, Field(le=2**24)], 2**25, "it must be less than or equal to 2^24"),
        (Annotated[float, Field(gt=0, allow_inf_nan=False)], float("inf"), "it must be finite"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "it must have at most 1 item, not 2"),
        (Annotated[str, Field(max_length=2)], "abc", "it must have at most 2 characters, not 3"),
        (Annotated[str, Field(min_length=1)], "", "it must have at least 1 character, not 0"),
        (Annotated[SecretStr | None, Field(min_length=16)], "x" * 12, "it must have at least 16 characters, not 12"),
        (Annotated[str, Field(pattern="a")], "half of a pair: \ud800", "it must be Unicode text"),
        (int, 1.5, "it must be an integer"),
        (frozenset[str], "x", "it must be a list"),
        (Job, [1], "it must be an object"),
        (IPvAnyNetwork, "x", "it must be a network"),
        (ByteSize, "1 heap", "it is not a valid value"),
    ],
)
def test_an_error_says_what_the_value_must_be(kind: Any, given: Any, said: str) -> None:
    adapter = TypeAdapter(kind)
    with pytest.raises(ValidationError) as caught:
        adapter.validate_python(given)
    schema = adapter.json_schema()
    assert worded(caught.value.errors()[0], schema, schema) == said


def test_the_words_of_a_validator_stay() -> None:
    custom = PydanticCustomError("odd_type", "it is odd")
    assert worded({"type": custom.type, "msg": custom.message(), "input": 1}, {}, {"type": "string"}) == "it is odd"
    assert worded({"type": "value_error", "msg": "Value error, ", "input": 1}, {}, {}) == "it is not a valid value"
