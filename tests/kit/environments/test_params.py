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


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"id": "gym:os:system-v0"}, "not in the form of the old Gym's registry; use an id such as gym:CartPole-v1"),
        ({"id": "gym:"}, "not in the form of the old Gym's registry"),
        (
            {"id": "gym:CartPole-v1", "vectorization": "own"},
            "own does not exist for environments of the old Gym; use vectorization: loop",
        ),
    ],
)
def test_ids_of_the_old_gym(given: dict[str, str], expected: str) -> None:
    assert Environment(id="gym:CartPole-v1").legacy_id == "CartPole-v1"
    with pytest.raises(ValidationError, match=expected):
        Environment.model_validate(given)


def test_vector_implementations_take_no_wrappers() -> None:
    with pytest.raises(ValidationError, match="need vectorization: loop"):
        Environment.model_validate({"id": "CartPole-v1", "vectorization": "own", "wrappers": ["FlattenObservation"]})


def test_arguments_have_a_maximum_size() -> None:
    largest_map = {"desc": ["S" + "F" * 98 + "G"] * 150}
    assert Environment.model_validate({"id": "FrozenLake-v1", "kwargs": largest_map}).kwargs == largest_map
    too_many = {"a": "F" * 20_000}
    for given in ({"kwargs": too_many}, {"wrappers": [{"entry_point": "FlattenObservation", "kwargs": too_many}]}):
        with pytest.raises(
            ValidationError, match="20,009 characters as JSON; at most 16,384 are allowed; pass larger data in a file"
        ):
            Environment.model_validate({"id": "FrozenLake-v1", **given})
