# pyright: standard
"""Trajectories of environments that are played side by side."""

import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from tests.workloads.reinforce.playgrounds import Corridor

from rolecall.kit.environments import creation
from rolecall.kit.environments.params import Environment
from rolecall.kit.environments.rollouts import ActFn, Collector


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_BUILDERS", "tests.workloads.reinforce")


CORRIDOR = Environment(id="tests.workloads.reinforce.playgrounds:Corridor", kwargs={"length": 3})


def collector(count: int) -> Collector:
    made = Collector(creation.make_vector(CORRIDOR, count), lambda: None)
    made.reset(list(range(count)))
    return made


def always(*actions: int) -> ActFn:
    return lambda observations: torch.tensor(actions)


def test_steps_go_on_over_episodes_and_calls() -> None:
    """The first environment walks to the end in 3 steps, the second falls at once; each then takes a step to begin."""
    playing = collector(2)
    first = playing.collect_steps(always(1, 0), 5)
    assert first.rewards.T.tolist() == [[1, 1, 1, 0, 1], [0, 0, 0, 0, 0]]
    assert first.valid.T.tolist() == [[True, True, True, False, True], [True, False, True, False, True]]
    assert first.truncated.T.tolist() == [[False, False, True, False, False], [False] * 5]
    assert first.terminated.T.tolist() == [[False] * 5, [True, False, True, False, True]]
    assert first.episode_returns.tolist() == [0, 3, 0, 0]
    assert first.episode_lengths.tolist() == [1, 3, 1, 1]
    assert first.was_reset
    second = playing.collect_steps(always(1, 1), 2)
    assert second.valid.T.tolist() == [[True, True], [False, True]]
    assert second.episode_returns.tolist() == [3]
    assert not second.was_reset


def test_whole_episodes_wait_for_the_longest_and_count_each_environment_once() -> None:
    """After an episode, the policy sees its last observation if it was cut off, and no other."""
    seen = []

    def act(observations: torch.Tensor) -> torch.Tensor:
        seen.append(observations.flatten().tolist())
        return torch.tensor([1, 1, 0])[: len(observations)]

    corridors = SyncVectorEnv([lambda length=length: Corridor(length) for length in (4, 2, 4)])
    playing = Collector(corridors, lambda: None)
    playing.reset([0, 1, 2])
    env_outputs = playing.collect_episodes(act)
    assert env_outputs.valid.T.tolist() == [[True] * 4, [True, True, False, False], [True, False, False, False]]
    assert env_outputs.acted.T.tolist() == [[True] * 4, [True, True, True, False], [True, False, False, False]]
    assert seen == [[0, 0, 0], [0.25, 0.5], [0.5, 1], [0.75]]
    assert sorted(env_outputs.episode_returns.tolist()) == [0, 2, 4]


def test_the_next_observation_of_a_cut_off_episode_is_its_last() -> None:
    seen = []

    def act(observations: torch.Tensor) -> torch.Tensor:
        seen.append(observations.clone())
        return torch.tensor([1])

    env_outputs = collector(1).collect_steps(act, 4)
    assert [float(one) for one in [*seen, env_outputs.last_observation]] == pytest.approx([0, 1 / 3, 2 / 3, 1, 0])


def test_it_can_be_left_between_two_steps() -> None:
    def check_shutdown() -> None:
        raise InterruptedError

    playing = Collector(creation.make_vector(CORRIDOR, 1), check_shutdown)
    playing.reset([0])
    with pytest.raises(InterruptedError):
        playing.collect_steps(always(1), 3)
