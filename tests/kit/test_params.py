"""Shared parameters: their forms in JSON, their bounds, and the learning rate schedule."""

import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from rolecall.kit.data_access import DataPath
from rolecall.kit.params import LrSchedule, Paths, RenamedProtocol, TrainingParams, Widths, changed, require_shares
from rolecall.spec import workload


class Given(workload.Params):
    data: Paths = Field(default_factory=lambda: [DataPath("rows")])
    hidden: Widths = ()
    protocol: Annotated[Literal["tutorial"], RenamedProtocol] = "tutorial"


def test_one_path_is_a_list_of_one_and_is_marked_as_a_path() -> None:
    for given in ("rows.csv", ["rows.csv"]):
        read = Given.model_validate({"data": given})
        assert read.data == ["rows.csv"]
        assert isinstance(read.data[0], DataPath)


def test_every_wrong_path_is_named() -> None:
    with pytest.raises(ValidationError) as caught:
        Given.model_validate_json('{"data": ["a.csv", "", "b.csv", 5, ""]}', strict=True)
    assert [error["loc"] for error in caught.value.errors()] == [("data", 1), ("data", 3), ("data", 4)]


def test_lists_become_tuples() -> None:
    assert Given.model_validate({"hidden": [3, 2]}).hidden == (3, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": []}, "at least 1 item"),
        ({"data": ["a" * 4097]}, "at most 4096 characters"),
        ({"hidden": [2**20 + 1]}, "less than or equal to 1048576"),
        ({"protocol": "seed"}, 'use "tutorial"'),
        ({"unknown": 1}, "Extra inputs"),
    ],
)
def test_the_error_names_the_bound(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Given.model_validate(changes)


@pytest.mark.parametrize("changes", [{"epochs": 0}, {"max_steps": 0}, {"seed": -1}, {"checkpoint_every_s": 0.0}])
def test_training_parameters_have_lower_bounds(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="greater than"):
        TrainingParams.model_validate(changes)


def test_a_schedule_warms_up_and_decays_to_zero() -> None:
    cosine = LrSchedule(shape="cosine", warmup_steps=4)
    assert [cosine.factor(step, 14) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert cosine.factor(9, 14) == pytest.approx(0.5)
    assert cosine.factor(13, 14) == pytest.approx(0.5 * (1 + math.cos(0.9 * math.pi)))
    assert cosine.factor(14, 14) == cosine.factor(99, 14) == 0.0
    assert {LrSchedule().factor(step, 14) for step in range(15)} == {1.0}


def test_every_trainer_needs_a_sample() -> None:
    require_shares(4, 4)
    with pytest.raises(ValueError, match="batch_size 3 is shared by 4 trainers; set it to 4 or more"):
        require_shares(3, 4)


def test_changed_parameters_are_those_with_other_values_than_their_defaults() -> None:
    given = TrainingParams(epochs=10, seed=1, max_steps=2)
    assert list(changed(given, ("max_steps", "epochs", "seed", "lr_schedule"))) == ["max_steps", "seed"]
