"""Recorded trajectories: T steps of n environments."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AgentOutputs:
    """The policy's inputs and outputs."""

    observations: Tensor
    """[T, n, ...], raw."""
    actions: Tensor
    """[T, n, ...], as sampled by the policy."""
    log_probs: Tensor
    """[T, n], in nats, under the policy that sampled the actions."""


@dataclass(frozen=True, slots=True)
class EnvOutputs:
    """The environments' outputs."""

    rewards: Tensor
    """[T, n]."""
    terminated: Tensor
    """[T, n]: the episode ended in a terminal state."""
    truncated: Tensor
    """[T, n]: the episode was cut off; the next observation is its last."""
    valid: Tensor
    """[T, n]: false for steps that only reset, and for steps after the requested episode."""
    last_observation: Tensor
    """[n, ...], after the last step."""
    episode_returns: Tensor
    """[k], undiscounted returns of the episodes that ended."""
    episode_lengths: Tensor
    """[k], lengths of these episodes in steps."""
    was_reset: bool
    """Whether all environments were reset before the first step."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One observer's agent and environment outputs."""

    agent_outputs: AgentOutputs
    env_outputs: EnvOutputs

    @property
    def observations(self) -> Tensor:
        """[T + 1, n, ...], including the last one."""
        return torch.cat([self.agent_outputs.observations, self.env_outputs.last_observation.unsqueeze(0)])


class AgentOutputBuffer:
    """Accumulates agent outputs step by step."""

    def __init__(self) -> None:
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, observations: Tensor, actions: Tensor, log_probs: Tensor) -> None:
        """Add one step of n environments: [n, ...], [n, ...] and [n]."""
        self._steps.append((observations, actions, log_probs))

    def agent_outputs(self) -> AgentOutputs:
        """The outputs of all steps."""
        observations, actions, log_probs = (torch.stack(column) for column in zip(*self._steps, strict=True))
        return AgentOutputs(observations, actions, log_probs)
