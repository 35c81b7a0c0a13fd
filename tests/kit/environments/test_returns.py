# pyright: standard
"""Advantages against their definition, written out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.kit.environments.returns import advantages, discounted_sums

pytestmark = pytest.mark.usefixtures("implementation")

GAMMA, LAMBDA = 0.9, 0.8


def by_definition(rewards: torch.Tensor, values: torch.Tensor, terminated: torch.Tensor, ended: torch.Tensor) -> list:
    """One environment: each advantage is the sum of the later errors of the value up to the episode's end."""
    errors = [
        float(rewards[t] + (0 if terminated[t] else GAMMA * values[t + 1]) - values[t]) for t in range(len(rewards))
    ]
    found = []
    for begin in range(len(errors)):
        total = 0.0
        for t in range(begin, len(errors)):
            total += (GAMMA * LAMBDA) ** (t - begin) * errors[t]
            if ended[t]:
                break
        found.append(total)
    return found


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_generalized_advantages(seed: int, steps: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(count, 2, generator=draw, dtype=torch.float64) for count in (steps, steps + 1))
    ends = torch.randint(0, 6, (steps, 2), generator=draw)
    terminated, truncated = ends == 0, ends == 1
    found = advantages(rewards, values, terminated, truncated, gamma=GAMMA, gae_lambda=LAMBDA)
    for env in range(2):
        ended = (terminated | truncated)[:, env]
        expected = by_definition(rewards[:, env], values[:, env], terminated[:, env], ended)
        torch.testing.assert_close(found[:, env].tolist(), expected, rtol=0, atol=1e-12)


def test_with_lambda_one_advantage_and_value_are_the_discounted_return() -> None:
    rewards = torch.tensor([[1.0], [2.0], [4.0]], dtype=torch.float64)
    values = torch.tensor([[5.0], [6.0], [7.0], [8.0]], dtype=torch.float64)
    no, last = torch.zeros(3, 1, dtype=torch.bool), torch.tensor([[False], [False], [True]])
    ended = advantages(rewards, values, last, no, gamma=0.5, gae_lambda=1.0) + values[:-1]
    assert ended.squeeze(1).tolist() == [1 + 0.5 * 2 + 0.25 * 4, 2 + 0.5 * 4, 4]
    cut = advantages(rewards, values, no, last, gamma=0.5, gae_lambda=1.0) + values[:-1]
    assert cut.squeeze(1).tolist() == [1 + 0.5 * 2 + 0.25 * (4 + 4), 2 + 0.5 * (4 + 4), 4 + 4]


def test_sums_of_past_rewards_restart_after_an_end() -> None:
    rewards = torch.tensor([[1.0], [1.0], [1.0]])
    ended = torch.tensor([[False], [True], [False]])
    assert discounted_sums(rewards, ended, torch.tensor([4.0]), 0.5).squeeze(1).tolist() == [3.0, 2.5, 1.0]
