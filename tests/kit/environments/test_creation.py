# pyright: standard
"""Environments by id or entry point, and their spaces."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from rolecall.kit.environments import creation
from rolecall.kit.environments.params import Environment
from rolecall.spec.errors import InputError

HERE = "tests.workloads.reinforce.playgrounds"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")


def environment(**given: Any) -> Environment:
    return Environment.model_validate({"id": "CartPole-v1", **given})


def test_ids_entry_points_arguments_and_wrappers() -> None:
    assert creation.make(environment(max_episode_steps=7)).spec.max_episode_steps == 7  # type: ignore[union-attr]
    made = creation.make(
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
    made = creation.make(environment(id=f"{HERE}:Walk-v0"))
    assert made.spec is not None
    assert made.spec.max_episode_steps == 4


def test_spaces_are_described() -> None:
    assert creation.describe(environment()) == {
        "observation": {"shape": [4]},
        "action": {"count": 2, "start": 0},
    }
    assert creation.describe(environment(id="Pendulum-v1"))["action"] == {
        "shape": [1],
        "low": [-2.0],
        "high": [2.0],
    }
    flat = environment(id=f"{HERE}:Maze", wrappers=["FlattenObservation"])
    assert creation.describe(flat)["observation"] == {"shape": [5]}


def test_a_reward_threshold_comes_from_the_registration() -> None:
    assert creation.reward_threshold(environment()) == 475
    assert creation.reward_threshold(environment(id="Acrobot-v1", wrappers=["FlattenObservation"])) == -100
    for name in ("Pendulum-v1", f"{HERE}:Corridor"):
        with pytest.raises(InputError, match="is registered without a reward threshold"):
            creation.reward_threshold(environment(id=name))


def test_the_step_after_an_end_starts_again() -> None:
    for vectorization in ("loop", "own"):
        vector = creation.make_vector(environment(vectorization=vectorization, max_episode_steps=3), 2)
        vector.reset(seed=1)
        *_, truncated, _ = [vector.step(np.array([0, 1])) for _ in range(3)][-1]
        assert truncated.all()
        _, rewards, terminated, truncated, _ = vector.step(np.array([0, 1]))
        assert not np.stack([rewards, terminated, truncated]).any()
        vector.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"id": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}}, "KeyError: '9x9'"),
        ({"id": "FrozenLake-v1", "kwargs": {"reward_schedule": [1]}}, "IndexError: list index out of range"),
        ({"wrappers": [{"entry_point": "FrameStackObservation", "kwargs": {"stack_size": 2**63}}]}, "OverflowError: "),
    ],
)
def test_errors_in_arguments_are_errors_of_the_environment(given: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=f"can't be created on this node: .*{why}"):
        creation.check(environment(**given))


@pytest.mark.parametrize("vectorization", ["loop", "own"])
def test_an_environment_that_fails_in_a_step_is_refused(vectorization: str, monkeypatch: pytest.MonkeyPatch) -> None:
    creation.check(environment(vectorization=vectorization))
    wrapper = {"entry_point": "TransformReward", "kwargs": {"func": "x"}}
    why = r"'CartPole-v1' fails in a step: TypeError: .*; check the arguments of its wrappers: TransformReward"
    if vectorization == "loop":
        with pytest.raises(InputError, match=why):
            creation.check(environment(wrappers=[wrapper]))
    else:
        monkeypatch.setattr(CartPoleVectorEnv, "step", lambda *_: 1 / 0)
        with pytest.raises(InputError, match=r"fails in a step: ZeroDivisionError: .*; check its arguments"):
            creation.check(environment(vectorization=vectorization))


def test_a_lack_of_memory_is_no_error_of_the_environment() -> None:
    wrapper = {"entry_point": "FrameStackObservation", "kwargs": {"stack_size": 10**14}}
    with pytest.raises(MemoryError):  # An `InputError` would fail the job; after other errors, it is retried.
        creation.check(environment(wrappers=[wrapper]))
