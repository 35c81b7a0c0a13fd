"""Reward normalization."""

import torch
from torch import Tensor

from rolecall.workloads.reinforce.advantages import discounted_sums
from rolecall.workloads.reinforce.model import Normalizer
from rolecall.workloads.reinforce.trajectory import EnvOutputs

_MAX_REWARD = 10.0


class RewardNormalizer:
    """Divides rewards by the deviation of the discounted sums of past rewards (Engstrom et al., 2020, section 3)."""

    def __init__(self, gamma: float) -> None:
        self.moments = Normalizer(())
        self._gamma = gamma
        self._sums: dict[int, Tensor] = {}

    def normalize(self, observer: int, env_outputs: EnvOutputs) -> Tensor:
        """The normalized rewards [T, n] of one observer's new trajectory, after updating the statistics with it."""
        if env_outputs.was_reset:
            self._sums[observer] = torch.zeros_like(env_outputs.rewards[0])
        ended = env_outputs.terminated | env_outputs.truncated
        sums = discounted_sums(env_outputs.rewards, ended, self._sums[observer], self._gamma)
        self._sums[observer] = sums[-1] * ~ended[-1]
        self.moments.update(sums[env_outputs.valid])
        return (env_outputs.rewards * (self.moments.variance + 1e-8).rsqrt()).clamp(-_MAX_REWARD, _MAX_REWARD)
