"""Shorthands and limits of an environment's parameters."""

import pytest
from pydantic import ValidationError

from rolecall.kit.environments.params import Environment


def test_a_wrapper_is_a_name_or_an_object() -> None:
    given = ["FlattenObservation", {"entry_point": "mine:Scaled", "kwargs": {"factor": 2}}]
    found = Environment.model_validate({"id": "CartPole-v1", "wrappers": given})
    assert [(wrapper.entry_point, wrapper.kwargs) for wrapper in found.wrappers] == [
        ("FlattenObservation", {}),
        ("mine:Scaled", {"factor": 2}),
    ]


def test_vector_implementations_take_no_wrappers() -> None:
    with pytest.raises(ValidationError, match="need vectorization: loop"):
        Environment.model_validate({"id": "CartPole-v1", "vectorization": "own", "wrappers": ["FlattenObservation"]})
