"""Environments are found by id or entry point, and what can't be played is refused on the node."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.reinforce import environments
from rolecall.workloads.reinforce.check import check_node
from rolecall.workloads.reinforce.params import Environment, Params

HERE = "tests.workloads.reinforce.playgrounds"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")


def environment(**given: Any) -> Environment:
    return Environment.model_validate({"id": "CartPole-v1", **given})


def test_ids_entry_points_arguments_and_wrappers() -> None:
    assert environments.make(environment(max_episode_steps=7)).spec.max_episode_steps == 7  # type: ignore[union-attr]
    made = environments.make(
        environment(
            id=f"{HERE}:Corridor",
            kwargs={"length": 3},
            max_episode_steps=2,
            wrappers=["RecordEpisodeStatistics", {"entry_point": f"{HERE}:Scaled", "kwargs": {"factor": 3.0}}],
        )
    )
    assert isinstance(made, gymnasium.Wrapper)
    assert isinstance(made.env, gymnasium.wrappers.RecordEpisodeStatistics)
    made.reset()
    assert made.step(1)[1:4] == (3.0, False, False)
    assert made.step(1)[1:4] == (3.0, False, True)


def test_an_id_that_a_module_registers() -> None:
    gymnasium.register("Walk-v0", f"{HERE}:Corridor", max_episode_steps=4)
    made = environments.make(environment(id=f"{HERE}:Walk-v0"))
    assert made.spec is not None
    assert made.spec.max_episode_steps == 4


def test_spaces_are_described() -> None:
    assert environments.describe(environment()) == {
        "observation": {"shape": [4]},
        "action": {"count": 2, "start": 0},
    }
    assert environments.describe(environment(id="Pendulum-v1"))["action"] == {
        "shape": [1],
        "low": [-2.0],
        "high": [2.0],
    }
    flat = environment(id=f"{HERE}:Maze", wrappers=["FlattenObservation"])
    assert environments.describe(flat)["observation"] == {"shape": [5]}


def test_the_step_after_an_end_begins_anew() -> None:
    for vectorization in ("loop", "own"):
        vector = environments.make_vector(environment(vectorization=vectorization, max_episode_steps=3), 2)
        vector.reset(seed=1)
        *_, truncated, _ = [vector.step(np.array([0, 1])) for _ in range(3)][-1]
        assert truncated.all()
        _, rewards, terminated, truncated, _ = vector.step(np.array([0, 1]))
        assert not np.stack([rewards, terminated, truncated]).any()
        vector.close()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"environment": "CartPoll-v1"}, "CartPoll"),
        ({"environment": "subprocess:Popen"}, "not allowed subprocess"),
        ({"environment": "shutil:Walk-v0"}, "not allowed shutil"),
        ({"environment": "tests.workloads.reinforce.nowhere:Env"}, "No module named"),
        ({"environment": f"{HERE}:no_environment"}, "is a dict, not a gymnasium.Env"),
        ({"environment": f"{HERE}:Nothing"}, "Nothing"),
        ({"environment": {"id": "CartPole-v1", "kwargs": {"gravity": 1}}}, "gravity"),
        ({"environment": {"id": "CartPole-v1", "wrappers": ["NoSuchWrapper"]}}, "NoSuchWrapper"),
        ({"environment": f"{HERE}:Maze"}, "add a wrapper, for example FlattenObservation"),
        ({"environment": f"{HERE}:Levers"}, "MultiDiscrete"),
        ({"environment": {"id": "Acrobot-v1", "vectorization": "own"}}, "set environment.vectorization to loop"),
        (
            {"environment": "CartPole-v1", "policy": {"name": "custom", "builder": "nowhere:Net"}},
            "not allowed nowhere",
        ),
    ],
)
def test_the_node_refuses(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_node(Params.model_validate(given), Role.OBSERVER)
