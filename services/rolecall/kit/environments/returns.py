"""Discounted returns and advantages of rollouts. No I/O, no clock."""

import torch
from torch import Tensor

from rolecall.kit.native import library, policy_loops


def normalize(numbers: Tensor, eps: float = 1e-8) -> Tensor:
    """The numbers [b] with mean 0 and deviation 1; a single number is unchanged."""
    if len(numbers) == 1:
        return numbers
    deviation, mean = torch.std_mean(numbers)
    return (numbers - mean).div_(deviation + eps)


def advantages(
    rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Generalized advantage estimates (Schulman et al., 2016), [T, n].

    `rewards`, `terminated` and `truncated` are [T, n]; `values` [T + 1, n] has the value of the observation before
    each step and after the last. Truncated episodes bootstrap from the value of their last observation, terminated ones
    don't. With `gae_lambda` 1, advantage plus value is the discounted return.
    """
    if library.is_native(rewards, values) and library.are_flags(terminated, truncated):
        return policy_loops.advantages(rewards, values, terminated, truncated, gamma=gamma, gae_lambda=gae_lambda)
    deltas = rewards + gamma * values[1:] * ~terminated - values[:-1]
    carried = gamma * gae_lambda * (~(terminated | truncated)).to(values)
    found = torch.empty_like(deltas)
    later = torch.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        later = deltas[step] + carried[step] * later
        found[step] = later
    return found


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """The discounted sums of each step's reward and the later ones of its episode, [T]."""
    returns = torch.empty_like(rewards)
    later = torch.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        later = rewards[step] + gamma * later
        returns[step] = later
    return returns


def discounted_sums(rewards: Tensor, ended: Tensor, before: Tensor, gamma: float) -> Tensor:
    """The discounted sums of past rewards after each step, [T, n]; `before` [n] is the sum before the first step.

    `ended` [T, n] marks steps after which the sum restarts at 0.
    """
    sums = torch.empty_like(rewards)
    running = before
    for step in range(len(rewards)):
        running = running * gamma + rewards[step]
        sums[step] = running
        running = running * ~ended[step]
    return sums
