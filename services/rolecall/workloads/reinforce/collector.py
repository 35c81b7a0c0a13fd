"""Plays a set of environments side by side and records what happens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rolecall.workloads.reinforce.trajectory import Outcomes

Decide = Callable[[Tensor], Tensor]
"""Raw observations [n, ...] to actions [n, ...] as the environments take them."""


@dataclass
class _Record:
    """The columns of a trajectory while it grows."""

    rewards: list[NDArray[np.float64]] = field(default_factory=list)
    terminated: list[NDArray[np.bool_]] = field(default_factory=list)
    truncated: list[NDArray[np.bool_]] = field(default_factory=list)
    valid: list[NDArray[np.bool_]] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)


class Collector:
    """A set of environments that keeps its place between two calls.

    After an episode's end the next step only begins a new one (Gymnasium's `NEXT_STEP`): its observation is the last of
    the old episode, its action is ignored, its reward 0. So every valid step's next observation is the one that follows
    it in time, also where an episode was cut off.
    """

    def __init__(self, environments: VectorEnv, left: Callable[[], None]) -> None:
        """`left` is called before every step and raises when there is no more use for the steps."""
        self._environments = environments
        self._left = left
        self._count = environments.num_envs
        self._action_type = environments.single_action_space.dtype

    def restart(self, seeds: list[int] | int) -> None:
        """Begin a new episode in every environment, each with its own seed or all from one."""
        self._observations, _ = self._environments.reset(seed=cast(int, seeds))  # Gymnasium takes a list, too.
        self._begins = np.zeros(self._count, np.bool_)
        self._returns = np.zeros(self._count)
        self._lengths = np.zeros(self._count, np.int64)
        self._restarted = True

    def steps(self, decide: Decide, count: int) -> Outcomes:
        """`count` steps of every environment."""
        record = _Record()
        for _ in range(count):
            self._step(decide, record, ~self._begins)
        return self._outcomes(record)

    def episodes(self, decide: Decide) -> Outcomes:
        """One whole episode of every environment, which must have been restarted; the long ones are waited for.

        (The first episodes to end would be the short ones, and a biased sample.)
        """
        record = _Record()
        wanted = np.ones(self._count, np.bool_)
        while wanted.any():
            self._step(decide, record, wanted)
            wanted = wanted & ~(record.terminated[-1] | record.truncated[-1])
        return self._outcomes(record)

    def _step(self, decide: Decide, record: _Record, valid: NDArray[np.bool_]) -> None:
        self._left()
        actions = decide(torch.as_tensor(self._observations)).cpu().numpy().astype(self._action_type, copy=False)
        self._observations, rewards, terminated, truncated, _ = self._environments.step(actions)
        record.rewards.append(np.where(valid, rewards, 0.0))
        record.terminated.append(terminated & valid)
        record.truncated.append(truncated & valid & ~terminated)
        record.valid.append(valid.copy())
        self._begins = terminated | truncated
        self._count_episodes(record, rewards, valid)

    def _count_episodes(self, record: _Record, rewards: NDArray[np.float64], valid: NDArray[np.bool_]) -> None:
        self._returns += np.where(valid, rewards, 0.0)
        self._lengths += valid
        ended = self._begins & valid
        if ended.any():
            record.returns += self._returns[ended].tolist()
            record.lengths += self._lengths[ended].tolist()
            self._returns[self._begins] = 0.0
            self._lengths[self._begins] = 0

    def _outcomes(self, record: _Record) -> Outcomes:
        restarted, self._restarted = self._restarted, False
        return Outcomes(
            rewards=torch.as_tensor(np.stack(record.rewards)),
            terminated=torch.as_tensor(np.stack(record.terminated)),
            truncated=torch.as_tensor(np.stack(record.truncated)),
            valid=torch.as_tensor(np.stack(record.valid)),
            last_observation=torch.as_tensor(self._observations),
            episode_returns=torch.tensor(record.returns, dtype=torch.float64),
            episode_lengths=torch.tensor(record.lengths, dtype=torch.int64),
            restarted=restarted,
        )
