"""Environments for tests; workers make them by their entry points."""

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from rolecall.kit.worker import current


class Corridor(gymnasium.Env[Any, Any]):
    """A walk of `length` steps to the right; a step to the left ends it. Every step to the right is worth 1."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 5) -> None:
        self._length = length
        self._at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at += 1
        fell = int(action) == 0
        return self._seen(), 0.0 if fell else 1.0, fell, not fell and self._at == self._length, {}

    def _seen(self) -> Any:
        return np.array([self._at / self._length], np.float32)


class Deadly(Corridor):
    """Kills the process of one observer when its environments have made `last_step` steps together."""

    made = 0

    def __init__(self, observer: int = 1, last_step: int = 40) -> None:
        super().__init__()
        self._last_step = last_step if _is_observer(observer) else -1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Deadly.made += 1
        if Deadly.made == self._last_step:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


class Slow(Corridor):
    """Takes its time in one observer."""

    def __init__(self, observer: int = 1, step_s: float = 0.2) -> None:
        super().__init__()
        self._step_s = step_s if _is_observer(observer) else 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)
        return super().step(action)


class Maze(gymnasium.Env[Any, Any]):
    """Its observations are of a kind that no policy takes without a wrapper."""

    observation_space = spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Box(0.0, 1.0, (2,), np.float32)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"x": 1, "y": np.zeros(2, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"x": 1, "y": np.zeros(2, np.float32)}, 1.0, True, False, {}


class Levers(Maze):
    """Its actions are of a kind that no policy chooses."""

    observation_space = spaces.Discrete(3, start=1)
    action_space = spaces.MultiDiscrete([2, 2])


def no_environment() -> dict[str, Any]:
    """An entry point that is not an environment."""
    return {}


class Scaled(gymnasium.RewardWrapper[Any, Any]):
    """A wrapper with an argument."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float) -> None:
        super().__init__(env)
        self._factor = factor

    def reward(self, reward: Any) -> float:
        return self._factor * reward


class Recorded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes each episode's observations, actions and rewards to the file `<observer>-<seed>.json` in a folder."""

    def __init__(self, env: gymnasium.Env[Any, Any], folder: str) -> None:
        super().__init__(env)
        self._folder = Path(folder)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._seen, info = super().reset(seed=seed, options=options)
        self._steps: list[tuple[list[float], int, float]] = []
        self._file = self._folder / f"{current().role_rank}-{seed}.json"
        return self._seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        before = self._seen.tolist()
        self._seen, reward, terminated, truncated, info = super().step(action)
        self._steps.append((before, int(action), float(reward)))
        if terminated or truncated:
            self._file.write_text(json.dumps(self._steps))
        return self._seen, reward, terminated, truncated, info


class Shared(nn.Module):
    """A policy that shares its first layer between actions and value."""

    def __init__(self, observation_shape: tuple[int, ...], outputs: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(observation_shape), width), nn.Tanh())
        self.actor, self.critic = nn.Linear(width, outputs), nn.Linear(width, 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(observations)
        return self.actor(features), self.critic(features).squeeze(-1)


def _is_observer(rank: int) -> bool:
    """True in the process of the observer with this number."""
    return os.environ.get("ROLE") == "observer" and os.environ.get("ROLE_RANK") == str(rank)


class Tied(nn.Module):
    """A network of two layers with the same weight."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        width = math.prod(shape)
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.hidden[2].weight = self.hidden[0].weight
        self.last = nn.Linear(width, outputs + 1)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.last(self.hidden(observations.flatten(1)))
        return found[:, :-1], found[:, -1]
