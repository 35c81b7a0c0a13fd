"""Metrics of episodes."""

import pytest
import torch

from rolecall.kit.environments.rollouts import EnvOutputs
from rolecall.kit.environments.scores import episode_metrics, evaluation_scores, running_return


def env_outputs(returns: list[float], lengths: list[int]) -> EnvOutputs:
    nothing, sums, steps = torch.empty(0, 1), torch.tensor(returns, dtype=torch.float64), torch.tensor(lengths)
    return EnvOutputs(nothing, nothing, nothing, nothing, nothing, nothing, sums, steps, was_reset=False)


def test_returns_are_reported_by_episode_and_observer() -> None:
    metrics = episode_metrics({0: env_outputs([1, 3], [2, 4]), 1: env_outputs([8], [6]), 2: env_outputs([], [])})
    assert metrics == {
        "episode_return": 4.0,
        "episode_length": 4.0,
        "observer_return_min": 2.0,
        "observer_0_return": 2.0,
        "observer_1_return": 8.0,
    }
    assert episode_metrics({0: env_outputs([], [])}) == {}
    scores = evaluation_scores([env_outputs([1, 3], [2, 4]), env_outputs([8], [6])])
    assert (scores["evaluation_return"], scores["evaluation_return_min"], scores["evaluation_return_max"]) == (4, 1, 8)


def test_the_running_return_follows_the_lowest_observer() -> None:
    first = running_return(0.0, episode_metrics({0: env_outputs([10], [10]), 1: env_outputs([40], [40])}))
    assert first == pytest.approx(0.5)
    assert running_return(first, {}) == first
    assert running_return(first, {"observer_return_min": 100.0}) == pytest.approx(5.475)
