"""Creates Gymnasium environments by name, and describes their spaces. Torch-free.

A name is an id in the registry of Gymnasium or of the old Gym, a wrapper of Gymnasium, or `module:name` of a module
that the operator allows. Neither Gymnasium nor Gym gets a name that it would import.
"""

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rolecall.kit.builders import explain_errors, find_allowed, import_allowed, shorten_error
from rolecall.kit.data_access import read_access
from rolecall.kit.environments import legacy_gym
from rolecall.kit.environments.params import Environment, Wrapper
from rolecall.spec.errors import InputError
from rolecall.spec.visible import one_line

Env = gymnasium.Env[Any, Any]

# Without `MemoryError`: an attempt on a node with more free memory can succeed.
_CREATION_ERRORS = (
    gymnasium.error.Error,
    ImportError,
    AttributeError,
    TypeError,
    ValueError,
    OSError,
    LookupError,
    ArithmeticError,
)
_REFUSED_WRAPPERS = {
    "ArrayConversion": "policies take NumPy arrays",
    "HumanRendering": "workers have no screen",
    "RecordVideo": "jobs can't write files; use evaluation.movie to record an episode",
}
_IMPORTING_IDS = ("GymV21Environment", "GymV26Environment")
"""Ids with which Gymnasium registers Shimmy's converters. They pass the argument `env_id` to Gym, which imports what is
before a colon. They exist once anything has imported Shimmy, such as a module that the operator allows."""
_FILE_ARGUMENTS = ("xml_file",)  # MuJoCo's models


def make(environment: Environment, *, render: bool = False) -> Env:
    """Create one environment with its wrappers; `render` enables frames as RGB arrays.

    Raises `InputError` if the environment or a wrapper does not exist or rejects its arguments.
    """
    arguments = _arguments(environment) | ({"render_mode": "rgb_array"} if render else {})
    try:
        made: object = _make_unwrapped(environment, arguments)
        for wrapper in environment.wrappers:
            made = _wrapper(wrapper)(made, **wrapper.kwargs)
    except _CREATION_ERRORS as error:
        why = f"can't be created on this node: {_shown(error)}"
        raise InputError(f"the environment {environment.id!r} {why}") from error
    if not isinstance(made, gymnasium.Env):
        raise InputError(f"the environment {environment.id!r} has the type {type(made).__name__}, not gymnasium.Env")
    return cast(Env, made)


def make_vector(environment: Environment, count: int) -> VectorEnv[Any, Any, Any]:
    """Create a vector of `count` environments with next-step autoreset; raises `InputError` as `make`."""
    if environment.vectorization == "loop":
        return SyncVectorEnv([lambda: make(environment)] * count)
    limit = {"max_episode_steps": environment.max_episode_steps} if environment.max_episode_steps else {}
    try:
        return gymnasium.make_vec(
            _registered_id(environment.id),
            count,
            vectorization_mode="vector_entry_point",
            **limit,
            **_arguments(environment),
        )
    except _CREATION_ERRORS as error:
        raise InputError(
            f"the environment {environment.id!r} has no vector implementation that can be created on this node "
            f"({_shown(error)}); set environment.vectorization to loop"
        ) from error


def describe(environment: Environment) -> dict[str, Any]:
    """Observation and action space as JSON; raises `InputError` for spaces that policies don't support."""
    with closing(make(environment)) as made:
        return {"observation": _observation(made.observation_space), "action": _action(made.action_space)}


def check(environment: Environment) -> None:
    """Raises `InputError` unless the environment is available on this node, and takes a step, and policies support its
    spaces."""
    describe(environment)
    with closing(make(environment)) as made:
        _require_step(environment, made)
    if environment.vectorization == "own":
        with closing(make_vector(environment, 1)) as vector:
            _require_step(environment, vector)


def _require_step(environment: Environment, made: Env | VectorEnv[Any, Any, Any]) -> None:
    wrappers = [wrapper.entry_point for wrapper in environment.wrappers]
    remedy = f"check the arguments of its wrappers: {', '.join(wrappers)}" if wrappers else "check its arguments"
    actions = cast("spaces.Space[Any]", made.action_space)  # pyright: ignore[reportUnknownMemberType]
    # Many wrappers use their arguments only now.
    with explain_errors(f"the environment {environment.id!r} fails in a step", remedy):
        made.reset(seed=0)
        actions.seed(0)
        made.step(actions.sample())


def reward_threshold(environment: Environment) -> float:
    """The mean return at which the environment counts as solved, from its registration.

    Raises `InputError` if the registration has none.
    """
    made = make(environment)
    made.close()
    threshold = None if made.spec is None else made.spec.reward_threshold
    if threshold is None:
        raise InputError(
            f"the environment {environment.id!r} is registered without a reward threshold; "
            "give the target return as a number"
        )
    return float(threshold)


def _shown(error: Exception) -> str:
    # The text of some errors is only a name or a number, such as that of a `KeyError`.
    return shorten_error(f"{type(error).__name__}: {error}")


def _make_unwrapped(environment: Environment, arguments: dict[str, Any]) -> Env:
    limit = environment.max_episode_steps
    if environment.legacy_id is not None:
        return legacy_gym.make(environment.legacy_id, limit, arguments)
    if not environment.is_entry_point:
        return gymnasium.make(_registered_id(environment.id), max_episode_steps=limit, **arguments)
    unwrapped = _find_allowed_class(environment.id, gymnasium.Env)(**arguments)
    return unwrapped if limit is None else gymnasium.wrappers.TimeLimit(unwrapped, limit)


def _registered_id(name: str) -> str:
    """The id in Gymnasium's registry, without module. For `module:id`, imports the module, which registers the id."""
    module, colon, registered = name.rpartition(":")
    if registered.startswith(_IMPORTING_IDS):
        raise InputError(f"the environment {name!r} can't be used: write gym:ID for an environment ID of the old Gym")
    if colon:
        import_allowed(module)
    return registered


def _wrapper(wrapper: Wrapper) -> Callable[..., object]:
    name = wrapper.entry_point
    if ":" in name:
        return _find_allowed_class(name, gymnasium.Wrapper)
    if reason := _REFUSED_WRAPPERS.get(name):
        raise InputError(f"the wrapper {name} can't be used: {reason}")
    found = getattr(gymnasium.wrappers, name)
    if not (isinstance(found, type) and issubclass(found, gymnasium.Wrapper)):
        raise InputError(f"{name} is not a wrapper of gymnasium.wrappers")
    return cast(Callable[..., object], found)


def _find_allowed_class(name: str, kind: type) -> Callable[..., Any]:
    """An allowed class of `kind`, or a function, whose result the caller checks."""
    found = find_allowed(name)
    if isinstance(found, type) and not issubclass(found, kind):
        raise InputError(f"{name} is not a gymnasium.{kind.__name__}")
    return found


def _arguments(environment: Environment) -> dict[str, Any]:
    """The environment's arguments, with file arguments checked against the data roots and resolved."""
    arguments = dict(environment.kwargs)
    for name in _FILE_ARGUMENTS:
        given = arguments.get(name)
        if isinstance(given, str) and ("/" in given or given.startswith(("~", "."))):
            access = read_access()
            if (plain := access.plain_path(given)) is None:
                raise InputError(f"{one_line(given)} is a URL; an environment's files must be local")
            arguments[name] = access.resolve(plain)
    return arguments


def _observation(space: spaces.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Discrete():
            return {"count": int(space.n), "start": int(space.start)}
        case spaces.Box():
            return {"shape": list(space.shape)}
        case _:
            pass
    raise InputError(
        f"policies support Box and Discrete observations, but this environment's are {space}; "
        "add a wrapper, for example FlattenObservation"
    )


def _action(space: spaces.Space[Any]) -> dict[str, Any]:
    match space:
        case spaces.Discrete():
            return {"count": int(space.n), "start": int(space.start)}
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return {"shape": list(space.shape), "low": _bounds(space.low), "high": _bounds(space.high)}
        case _:
            pass
    raise InputError(
        f"policies support Discrete actions and Box actions of floats, but this environment's are {space}; "
        "add a wrapper that converts them"
    )


def _bounds(bounds: Any) -> list[float | None]:
    return [float(bound) if math.isfinite(bound) else None for bound in bounds.reshape(-1)]
