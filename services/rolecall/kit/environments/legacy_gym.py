"""Environments of the old Gym (0.26), which Shimmy converts to Gymnasium's interface. Torch-free.

Both packages are optional: they are Rolecall's extra `gym`.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rolecall.spec.errors import InputError


def make(name: str, max_episode_steps: int | None, arguments: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment with the id `name` in Gym's registry; `name` has no module, which Gym would import.

    Raises `InputError` without the packages, `gymnasium.error.Error` if the environment does not exist, and the errors
    of the environment if it rejects its arguments.
    """
    gym, shimmy = _import("gym", name), _import("shimmy", name)
    try:
        # Gym's own checker fails with NumPy 2.
        made = gym.make(name, max_episode_steps=max_episode_steps, disable_env_checker=True, **arguments)
    except gym.error.Error as error:
        raise gymnasium.error.Error(str(error)) from error
    converted = shimmy.GymV26CompatibilityV0(env=made)
    # Wrappers need a specification of Gymnasium's type.
    converted.spec = EnvSpec(
        made.spec.id, reward_threshold=made.spec.reward_threshold, max_episode_steps=made.spec.max_episode_steps
    )
    return converted


def _import(package: str, name: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(
            f"the environment 'gym:{name}' needs the package {package}, which this node does not have: install "
            f"'rolecall[gym]' on all nodes of trainers and observers, or use an environment of Gymnasium ({error})"
        ) from error
