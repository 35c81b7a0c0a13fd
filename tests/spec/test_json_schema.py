"""The valid values of a JSON schema in words; `tests/cli` has the tests of its other uses."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from rolecall.spec.bounds import AwareMoment, matching
from rolecall.spec.json_schema import kinds, legal, not_null


class Named(BaseModel):
    """Needs another field."""

    name: Literal["named"]
    file: str


class Plain(BaseModel):
    """Needs only its tag."""

    name: Literal["plain"]


class Other(BaseModel):
    """Has no tag."""

    size: int


Tagged = Annotated[Named | Plain, Field(discriminator="name")]
_PLAIN = 'an object whose name is named or plain, such as {"name": "plain"}'


@pytest.mark.parametrize(
    ("kind", "kinds_in_words", "values"),
    [
        (Annotated[int, Field(ge=1, le=2**24)], "an integer", "an integer from 1 to 2^24"),
        (Annotated[float, Field(gt=0, le=1e9)], "a number", "a number > 0 and ≤ 10^9"),
        (Annotated[int | None, Field(ge=1)], "an integer or null", "an integer ≥ 1 or null"),
        (bool, "true or false", "true or false"),
        (str, "a string", "a string"),
        (Annotated[str, Field(min_length=1, max_length=4096)], "a string", "a string of 1 to 4,096 characters"),
        (Annotated[str, Field(max_length=1)], "a string", "a string of at most 1 character"),
        (Annotated[str, Field(min_length=16)], "a string", "a string of at least 16 characters"),
        (Annotated[str, Field(pattern="^a$")], "a string", "a string like ^a$"),
        (Annotated[str, matching("^a$", "the letter a")], "a string", "the letter a"),
        (list[str], "a list", "a list of strings"),
        (Annotated[list[str | int], Field(min_length=1)], "a list", "a list of at least 1 item"),
        (tuple[float, float], "a list", "a list of 2 numbers"),
        (tuple[()], "a list", "a list of 0 items"),
        (list[Any], "a list", "a list of items"),
        (Annotated[list[Literal["a", "b"]], Field(max_length=3)], "a list", "a list of at most 3 strings (a, b)"),
        (Annotated[list[Literal[1, 2]], Field(min_length=1)], "a list", "a list of at least 1 integer (1, 2)"),
        (list[Literal["a"] | int], "a list", "a list of items"),
        (dict[str, int], "an object", "an object"),
        (AwareMoment, "a time with its zone", "a time with its zone, such as 2026-01-31T18:00:00Z"),
        (Literal["a", "b"] | list[int], "a string or a list", "a, b or a list of integers"),
        (Other, "an object", "an object with size"),
        (Tagged, "an object", _PLAIN),
        (Tagged | None, "an object or null", f"{_PLAIN} or null"),
        (str | Named | Other, "a string or an object", None),
        (Named, "an object", 'an object whose name is named, such as {"name": "named", …}'),
        (Any, "", ""),
    ],
)
def test_the_valid_values_are_described_in_words(kind: Any, kinds_in_words: str, values: str | None) -> None:
    schema = TypeAdapter(kind).json_schema()
    assert kinds(schema, schema) == kinds_in_words
    assert values is None or legal(schema, schema) == values


def test_a_value_that_can_only_be_omitted_is_not_null() -> None:
    for adapter in (TypeAdapter[int | None](int | None), TypeAdapter(int)):
        schema = not_null(adapter.json_schema())
        assert legal(schema, schema) == "an integer"
