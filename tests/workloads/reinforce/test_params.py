"""Parameters of a job: forms, defaults and errors."""

from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.spec.role import Role
from rolecall.workloads.reinforce.check import check_counts
from rolecall.workloads.reinforce.params import Params

TUTORIAL = {"protocol": "tutorial", "algorithm": "reinforce", "policy_at": "agent", "environments": 1}


def params(**given: Any) -> Params:
    return Params.model_validate({"environment": "CartPole-v1", **given})


def test_names_stand_for_objects() -> None:
    short = params(
        algorithm="reinforce", policy="mlp", environment={"id": "CartPole-v1", "wrappers": ["FlattenObservation"]}
    )
    assert short.environment.id == "CartPole-v1"
    assert short.environment.wrappers[0].entry_point == "FlattenObservation"
    assert short.algorithm.name == "reinforce"
    assert params().algorithm.name == "ppo"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"protocol": "tutorial"},
            '(?s)algorithm must be "reinforce".*policy_at must be "agent".*environments must be 1',
        ),
        (
            TUTORIAL | {"inference": {"batch": 2}},
            "answers every request separately",
        ),
        (
            TUTORIAL | {"wait_for": 0.5, "normalize_rewards": True},
            "(?s)wait_for must be 1 .*normalize_rewards must be false",
        ),
        (
            TUTORIAL | {"algorithm": {"name": "reinforce", "value_coefficient": 0.3}},
            "algorithm.value_coefficient does not fit protocol: tutorial",
        ),
        ({"inference": {"batch": 2}}, "requires policy_at: agent"),
        ({"policy": {"name": "mlp", "dropout": 0.6}}, "policy.dropout requires protocol: tutorial"),
        ({"environment_seeds": "same"}, "environment_seeds: same requires protocol: tutorial; omit it"),
        (
            {"algorithm": {"name": "reinforce", "returns": "joined"}},
            "algorithm.returns: joined requires protocol: tutorial; omit it",
        ),
        (
            {"environment": "mine:Maze", "target_return": "threshold"},
            "mine:Maze is an entry point, which has none; set target_return to a number",
        ),
        ({"target_return": "solved"}, "Input should be 'threshold'"),
        (
            {"environment": {"id": "CartPole-v1", "vectorization": "own", "wrappers": ["FlattenObservation"]}},
            "need vectorization: loop",
        ),
        ({"policy": {"name": "custom", "builder": "no-colon"}}, "String should match pattern"),
        ({"wait_for": 0}, "greater than 0"),
        ({"algorithm": "sarsa"}, "'reinforce', 'ppo'"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        params(**given)


def test_the_tutorials_own_settings() -> None:
    without = {"name": "reinforce", "value_coefficient": 0, "entropy_coefficient": 0}
    policy = {"name": "mlp", "hidden": [128], "activation": "relu", "dropout": 0.6}
    given = TUTORIAL | {"algorithm": without, "policy": policy, "target_return": "threshold"}
    assert params(**given).target_return == "threshold"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"least_observers": 3}, "least_observers is 3, but the job has 2 observers; set it to at most 2"),
        ({"policy_at": "agent", "inference": {"batch": 3}}, "never be full with 2 observers; set it to at most 2"),
    ],
)
def test_counts_must_fit(given: dict[str, Any], expected: str) -> None:
    check_counts(params(**given), {Role.TRAINER: 1, Role.OBSERVER: 3})
    with pytest.raises(ValueError, match=expected):
        check_counts(params(**given), {Role.TRAINER: 1, Role.OBSERVER: 2})
