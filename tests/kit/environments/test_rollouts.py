"""Trajectories of environments that are played side by side."""

import pytest
import torch

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
    """The policy sees the last observation of each episode, but no observation after it."""
    seen = []

    def act(observations: torch.Tensor) -> torch.Tensor:
        seen.append(observations.flatten().tolist())
        return torch.tensor([1, 0])[: len(observations)]

    env_outputs = collector(2).collect_episodes(act)
    assert env_outputs.valid.T.tolist() == [[True, True, True], [True, False, False]]
    assert env_outputs.acted.T.tolist() == [[True, True, True], [True, True, False]]
    assert seen == [[0, 0], pytest.approx([1 / 3, 1 / 3]), pytest.approx([2 / 3])]
    assert sorted(env_outputs.episode_returns.tolist()) == [0, 3]


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
