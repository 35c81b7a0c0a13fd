"""What is recorded while environments are played. T steps of n environments each."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Decisions:
    """What the policy saw and did."""

    observations: Tensor
    """[T, n, ...], as the environments give them."""
    actions: Tensor
    """[T, n, ...], as the policy drew them."""
    log_probs: Tensor
    """[T, n], in nats, of the policy that drew them."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What the environments answered."""

    rewards: Tensor
    """[T, n]."""
    terminated: Tensor
    """[T, n]: the task ended here, and nothing comes after it."""
    truncated: Tensor
    """[T, n]: the episode was cut off here; the next observation is its last."""
    valid: Tensor
    """[T, n]: false for steps that only begin the next episode, and for what comes after the episode that is wanted."""
    last_observation: Tensor
    """[n, ...], what the policy would see next."""
    episode_returns: Tensor
    """[k], the sums of rewards of the episodes that ended, undiscounted."""
    episode_lengths: Tensor
    """[k], their steps."""
    restarted: bool
    """Whether all environments began a new episode with the first step."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Decisions and what came of them, from one observer."""

    decisions: Decisions
    outcomes: Outcomes

    @property
    def observations(self) -> Tensor:
        """[T + 1, n, ...], the last one too."""
        return torch.cat([self.decisions.observations, self.outcomes.last_observation.unsqueeze(0)])


class Trace:
    """Collects decisions step by step."""

    def __init__(self) -> None:
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, observations: Tensor, actions: Tensor, log_probs: Tensor) -> None:
        """One step of n environments: [n, ...], [n, ...] and [n]."""
        self._steps.append((observations, actions, log_probs))

    def decisions(self) -> Decisions:
        """All steps."""
        observations, actions, log_probs = (torch.stack(column) for column in zip(*self._steps, strict=True))
        return Decisions(observations, actions, log_probs)
