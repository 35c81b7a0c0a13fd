"""Brings rewards to a size that learning rates are made for."""

import torch
from torch import Tensor

from rolecall.workloads.reinforce.advantages import discounted_sums
from rolecall.workloads.reinforce.model import Normalizer
from rolecall.workloads.reinforce.trajectory import Outcomes

_LARGEST_REWARD = 10.0


class RewardScale:
    """Divides rewards by the deviation of the discounted sums of past rewards (Engstrom et al., 2020, section 3)."""

    def __init__(self, gamma: float) -> None:
        self.moments = Normalizer(())
        self._gamma = gamma
        self._sums: dict[int, Tensor] = {}

    def scaled(self, observer: int, outcomes: Outcomes) -> Tensor:
        """The rewards [T, n] of one observer's newest trajectory, after learning from them."""
        if outcomes.restarted:
            self._sums[observer] = torch.zeros_like(outcomes.rewards[0])
        ended = outcomes.terminated | outcomes.truncated
        sums = discounted_sums(outcomes.rewards, ended, self._sums[observer], self._gamma)
        self._sums[observer] = sums[-1] * ~ended[-1]
        self.moments.learn(sums[outcomes.valid])
        return (outcomes.rewards * (self.moments.variance + 1e-8).rsqrt()).clamp(-_LARGEST_REWARD, _LARGEST_REWARD)
