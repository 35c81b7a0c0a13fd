"""Makes Gymnasium environments from their names, and says what their spaces are. Torch-free."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rolecall.spec.errors import InputError
from rolecall.workloads.builders import check_builder, require_allowed
from rolecall.workloads.reinforce.params import Custom, Environment, Params, Wrapper

Env = gymnasium.Env[Any, Any]


def make(environment: Environment, *, render: bool = False) -> Env:
    """One environment inside its wrappers; `render` for one that gives pictures.

    Raises `InputError` when there is no such environment or wrapper, or it does not take the arguments.
    """
    arguments: dict[str, Any] = {**environment.kwargs, **({"render_mode": "rgb_array"} if render else {})}
    try:
        made = _make_bare(environment, arguments)
        for wrapper in environment.wrappers:
            made = _wrapper(wrapper)(made, **wrapper.kwargs)
    except (gymnasium.error.Error, ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"the environment {environment.id!r} can't be made on this node: {error}") from error
    if not isinstance(made, gymnasium.Env):
        raise InputError(f"the environment {environment.id!r} is no gymnasium.Env but a {type(made).__name__}")
    return made


def make_vector(environment: Environment, count: int) -> VectorEnv[Any, Any, Any]:
    """`count` environments side by side. The step after an episode's end begins the next one and does nothing else."""
    if environment.vectorization == "loop":
        return SyncVectorEnv([lambda: make(environment)] * count)
    limit = {"max_episode_steps": environment.max_episode_steps} if environment.max_episode_steps else {}
    try:
        return gymnasium.make_vec(
            environment.id, count, vectorization_mode="vector_entry_point", **limit, **environment.kwargs
        )
    except (gymnasium.error.Error, ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"the environment {environment.id!r} has no vector implementation of its own that can be made on this node "
            f"({error}); set environment.vectorization to loop"
        ) from error


def describe(environment: Environment) -> dict[str, Any]:
    """The spaces of observations and actions as JSON has them; raises `InputError` for those no policy can play."""
    made = make(environment)
    try:
        return {
            "observation": _observation(made.observation_space),
            "action": _action(made.action_space),
        }
    finally:
        made.close()


def check(params: Params) -> None:
    """Raises `InputError` unless environment and policy can be had on this node."""
    describe(params.environment)
    if params.environment.vectorization == "own":
        make_vector(params.environment, 1).close()
    if isinstance(params.policy, Custom):
        check_builder(params.policy)


def _make_bare(environment: Environment, arguments: dict[str, Any]) -> Env:
    if (made := _entry_point(environment.id)) is None:
        return gymnasium.make(environment.id, max_episode_steps=environment.max_episode_steps, **arguments)
    limit = environment.max_episode_steps
    bare = made(**arguments)
    return bare if limit is None else gymnasium.wrappers.TimeLimit(bare, limit)


def _entry_point(name: str) -> Callable[..., Any] | None:
    """What `package.module:Class` names. An id that a module registers has a version: it is no Python name."""
    module, colon, path = name.partition(":")
    if colon and module.partition(".")[0] != "gymnasium":
        require_allowed(module)
    if not colon or not all(part.isidentifier() for part in path.split(".")):
        return None
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _wrapper(wrapper: Wrapper) -> Callable[..., Env]:
    return _entry_point(wrapper.entry_point) or getattr(gymnasium.wrappers, wrapper.entry_point)


def _observation(space: spaces.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Discrete():
            return {"count": int(space.n), "start": int(space.start)}
        case spaces.Box():
            return {"shape": list(space.shape)}
    raise InputError(
        f"a policy here takes observations that are a Box or Discrete, and this environment's are {space}; "
        "add a wrapper, e.g. FlattenObservation"
    )


def _action(space: spaces.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Discrete():
            return {"count": int(space.n), "start": int(space.start)}
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return {"shape": list(space.shape), "low": _bounds(space.low), "high": _bounds(space.high)}
    raise InputError(
        f"a policy here chooses actions that are Discrete or a Box of floats, and this environment's are {space}; "
        "add a wrapper that turns them into one of the two"
    )


def _bounds(bounds: Any) -> list[float | None]:
    return [float(bound) if math.isfinite(bound) else None for bound in bounds.reshape(-1)]
