"""Errors of a job that its nodes find before the rendezvous."""

from typing import Any

import pytest

from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.reinforce.check import check_node
from rolecall.workloads.reinforce.params import Params

HERE = "tests.workloads.reinforce.playgrounds"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"environment": "CartPoll-v1"}, "CartPoll"),
        ({"environment": "subprocess:Popen"}, "not allowed subprocess"),
        ({"environment": "shutil:Walk-v0"}, "not allowed shutil"),
        ({"environment": "tests.workloads.reinforce.nowhere:Env"}, "No module named"),
        ({"environment": f"{HERE}:no_environment"}, "has the type dict, not gymnasium.Env"),
        ({"environment": f"{HERE}:Nothing"}, "Nothing"),
        ({"environment": {"id": "CartPole-v1", "kwargs": {"gravity": 1}}}, "gravity"),
        ({"environment": {"id": "CartPole-v1", "wrappers": ["NoSuchWrapper"]}}, "NoSuchWrapper"),
        ({"environment": f"{HERE}:Maze"}, "add a wrapper, for example FlattenObservation"),
        ({"environment": f"{HERE}:Levers"}, "MultiDiscrete"),
        ({"environment": {"id": "Acrobot-v1", "vectorization": "own"}}, "set environment.vectorization to loop"),
        ({"environment": "Pendulum-v1", "target_return": "threshold"}, "without a reward threshold; give the target"),
        ({"environment": "gym:CartPole-v1"}, "install 'rolecall\\[gym\\]' on all nodes of trainers and observers"),
        (
            {"environment": "CartPole-v1", "policy": {"name": "custom", "builder": "nowhere:Net"}},
            "not allowed nowhere",
        ),
    ],
)
def test_the_node_refuses(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        check_node(Params.model_validate(given), Role.OBSERVER)
