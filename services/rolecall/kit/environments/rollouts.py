# pyright: standard
"""Rollouts: steps a vector of environments and records trajectories, T steps of n environments."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rolecall.runtime.context import span

ActFn = Callable[[Tensor], Tensor]
"""Maps raw observations [k, ...] to environment actions [k, ...], for k of the n environments."""


class AgentOutputs(NamedTuple):
    """The policy's inputs and outputs, whenever it selected an action: b times, by step and then by environment."""

    observations: Tensor
    """[b, ...], raw."""
    actions: Tensor
    """[b, ...], as sampled by the policy."""
    log_probs: Tensor
    """[b], in nats, under the policy that sampled the actions."""


class EnvOutputs(NamedTuple):
    rewards: Tensor
    """[T, n]."""
    terminated: Tensor
    """[T, n]: the episode ended in a terminal state."""
    truncated: Tensor
    """[T, n]: the episode was cut off; the next observation is its last."""
    valid: Tensor
    """[T, n]: false for steps that only reset, and for steps after the requested episode."""
    acted: Tensor
    """[T, n]: the policy selected an action. True in all steps of `collect_steps`; in those of `collect_episodes`, for
    valid steps and the first step after a truncation."""
    last_observation: Tensor
    """[n, ...], after the last step."""
    episode_returns: Tensor
    """[k], undiscounted returns of the episodes that ended."""
    episode_lengths: Tensor
    """[k], lengths of these episodes in steps."""
    was_reset: bool
    """True if all environments were reset before the first step."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One observer's agent and environment outputs."""

    agent_outputs: AgentOutputs
    env_outputs: EnvOutputs


@dataclass
class _Record:
    """The columns of a trajectory under construction."""

    rewards: list[NDArray[np.float64]] = field(default_factory=list)
    terminated: list[NDArray[np.bool_]] = field(default_factory=list)
    truncated: list[NDArray[np.bool_]] = field(default_factory=list)
    valid: list[NDArray[np.bool_]] = field(default_factory=list)
    acted: list[NDArray[np.bool_]] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Collector:
    """Collects trajectories from a vector environment, whose state persists between calls.

    Environments autoreset with Gymnasium's `NEXT_STEP`: the step after the end of an episode only resets. Its
    observation is the last of the old episode, its action is ignored, its reward 0. So the next observation of every
    valid step is the one that follows in time, also at truncation.
    """

    def __init__(self, environments: VectorEnv, check_shutdown: Callable[[], None]) -> None:
        """`check_shutdown` is called before every step and raises to abort the collection."""
        self._environments = environments
        self._check_shutdown = check_shutdown
        self._count = environments.num_envs
        self._action_type = environments.single_action_space.dtype

    def reset(self, seeds: list[int] | int) -> None:
        """Reset every environment, each with its own seed or all from one."""
        self._observations, _ = self._environments.reset(seed=cast(int, seeds))  # Gymnasium takes a list, too.
        self._needs_reset = np.zeros(self._count, np.bool_)
        self._returns = np.zeros(self._count)
        self._lengths = np.zeros(self._count, np.int64)
        self._was_reset = True

    def collect_steps(self, act: ActFn, count: int) -> EnvOutputs:
        """Collect `count` steps of every environment."""
        record, acting = _Record(), np.ones(self._count, np.bool_)
        for _ in range(count):
            self._step(act, record, ~self._needs_reset, acting)
        return self._env_outputs(record)

    def collect_episodes(self, act: ActFn) -> EnvOutputs:
        """Collect one full episode of every environment, starting after `reset`.

        (Stopping after a number of episodes would bias the sample to short ones.)
        """
        record = _Record()
        wanted = acting = np.ones(self._count, np.bool_)
        while wanted.any():
            self._step(act, record, wanted, acting)
            wanted = wanted & ~(record.terminated[-1] | record.truncated[-1])
            # A truncated episode's return needs the value of its last observation, so it is recorded, too.
            acting = wanted | record.truncated[-1]
        return self._env_outputs(record)

    def _step(self, act: ActFn, record: _Record, valid: NDArray[np.bool_], acting: NDArray[np.bool_]) -> None:
        self._check_shutdown()
        self._actions = self._select_actions(act, acting)
        with span("step"):
            self._observations, rewards, terminated, truncated, _ = self._environments.step(self._actions)
        record.rewards.append(np.where(valid, rewards, 0.0))
        record.terminated.append(terminated & valid)
        record.truncated.append(truncated & valid & ~terminated)
        record.valid.append(valid)
        record.acted.append(acting)
        self._needs_reset = terminated | truncated
        self._count_episodes(record, rewards, valid)

    def _select_actions(self, act: ActFn, acting: NDArray[np.bool_]) -> NDArray[Any]:
        """The environments' actions; those that are not `acting` repeat their last one."""
        everyone = acting.all()
        seen = self._observations if everyone else self._observations[acting]
        actions = act(torch.as_tensor(seen)).cpu().numpy().astype(self._action_type, copy=False)
        if everyone:
            return actions
        selected = self._actions.copy()
        selected[acting] = actions
        return selected

    def _count_episodes(self, record: _Record, rewards: NDArray[np.float64], valid: NDArray[np.bool_]) -> None:
        self._returns += np.where(valid, rewards, 0.0)
        self._lengths += valid
        ended = self._needs_reset & valid
        if ended.any():
            record.returns += self._returns[ended].tolist()
            record.lengths += self._lengths[ended].tolist()
            self._returns[self._needs_reset] = 0.0
            self._lengths[self._needs_reset] = 0

    def _env_outputs(self, record: _Record) -> EnvOutputs:
        was_reset, self._was_reset = self._was_reset, False
        return EnvOutputs(
            rewards=torch.as_tensor(np.stack(record.rewards)),
            terminated=torch.as_tensor(np.stack(record.terminated)),
            truncated=torch.as_tensor(np.stack(record.truncated)),
            valid=torch.as_tensor(np.stack(record.valid)),
            acted=torch.as_tensor(np.stack(record.acted)),
            last_observation=torch.as_tensor(self._observations),
            episode_returns=torch.tensor(record.returns, dtype=torch.float64),
            episode_lengths=torch.tensor(record.lengths, dtype=torch.int64),
            was_reset=was_reset,
        )
