"""The agent's bookkeeping, and what it makes of observers that are slow or lost."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rolecall.kit.environments.rollouts import EnvOutputs
from rolecall.spec.role import Role
from rolecall.testing.gang import run_gang
from rolecall.workloads.reinforce.remote import _shares
from rolecall.workloads.reinforce.training import episode_metrics, evaluation_scores

GANG = {Role.TRAINER: 1, Role.OBSERVER: 2}
HERE = "tests.workloads.reinforce.playgrounds"
ALLOWED = {"ROLECALL_BUILDERS": "tests.workloads.reinforce"}


def job(environment: str, **changes: Any) -> dict[str, Any]:
    return {
        "environment": f"{HERE}:{environment}",
        "algorithm": {"name": "ppo", "steps": 16, "epochs": 1},
        "environments": 2,
        "max_updates": 6,
        "checkpoint_every_s": None,
        "evaluation": {"episodes": 3, "movie": False},
        **changes,
    }


def env_outputs(returns: list[float], lengths: list[int]) -> EnvOutputs:
    nothing, sums, steps = torch.empty(0, 1), torch.tensor(returns, dtype=torch.float64), torch.tensor(lengths)
    return EnvOutputs(nothing, nothing, nothing, nothing, nothing, sums, steps, was_reset=False)


def test_returns_are_reported_by_episode_and_observer() -> None:
    metrics = episode_metrics({0: env_outputs([1, 3], [2, 4]), 1: env_outputs([8], [6]), 2: env_outputs([], [])})
    assert metrics == {
        "episode_return": 4.0,
        "episode_length": 4.0,
        "observer_0_return": 2.0,
        "observer_1_return": 8.0,
    }
    assert episode_metrics({0: env_outputs([], [])}) == {}
    scores = evaluation_scores([env_outputs([1, 3], [2, 4]), env_outputs([8], [6])])
    assert (scores["evaluation_return"], scores["evaluation_return_min"], scores["evaluation_return_max"]) == (4, 1, 8)


def test_seeds_are_shared_evenly() -> None:
    assert _shares([1, 2, 3, 4, 5], [0, 2]) == {0: (1, 2, 3), 2: (4, 5)}
    assert _shares([1], [0, 2]) == {0: (1,)}


@pytest.mark.slow
@pytest.mark.parametrize("policy_at", ["agent", "observer"])
def test_the_agent_goes_on_without_a_lost_observer(tmp_path: Path, policy_at: str) -> None:
    """Observer 1's process dies in its second trajectory."""
    result = run_gang("reinforce", job("Deadly", policy_at=policy_at), GANG, tmp_path, environment=ALLOWED)
    assert result.result["observers"] == 1
    assert result.result["updates"] == 6


@pytest.mark.slow
def test_an_observer_that_dies_in_an_evaluation_leaves_its_episodes_to_the_others(tmp_path: Path) -> None:
    params = job("Deadly", evaluation={"episodes": 60, "movie": False}, max_updates=1)
    result = run_gang("reinforce", params, GANG, tmp_path, environment=ALLOWED)
    assert result.result["observers"] == 1
    assert result.result["evaluation_length"] >= 1


@pytest.mark.slow
def test_too_few_observers_end_the_attempt_behind_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="1 of 2 observers remain, but least_observers is 2"):
        run_gang("reinforce", job("Deadly", least_observers=2), GANG, tmp_path, environment=ALLOWED)
    assert list(tmp_path.glob("checkpoint-*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("policy_at", ["agent", "observer"])
def test_a_slow_observer_does_not_hold_the_others(tmp_path: Path, policy_at: str) -> None:
    """While the slow one takes seconds over its 16 steps, the other plays alone."""
    params = job("Slow", wait_for=0.5, policy_at=policy_at, max_updates=8, evaluation={"episodes": 1, "movie": False})
    result = run_gang("reinforce", params, GANG, tmp_path, environment=ALLOWED)
    assert result.result["updates"] == 8
    assert result.result["env_steps"] < 1.5 * 8 * 16 * 2
