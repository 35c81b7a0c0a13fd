"""Parameters of environments. Torch-free; docstrings are the API's descriptions."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from rolecall.kit.params import Count, Name, to_object, to_tuple
from rolecall.spec import workload
from rolecall.spec.bounds import matching

_LEGACY = "gym:"
_MAX_ARGUMENT_CHARS = 16_384


def _bounded(arguments: dict[str, Any]) -> dict[str, Any]:
    # Environments build tables from arguments: a map of FrozenLake with 1 MB takes a minute and 2 GB in each one.
    if (size := len(json.dumps(arguments, ensure_ascii=False))) > _MAX_ARGUMENT_CHARS:
        raise ValueError(
            f"it has {size:,} characters as JSON; at most {_MAX_ARGUMENT_CHARS:,} are allowed; "
            "pass larger data in a file that the environment's own code reads"
        )
    return arguments


Arguments = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""Keyword arguments, which every environment of every observer gets."""


class Wrapper(workload.Params):
    """A class that changes the observations, actions or rewards of an environment."""

    entry_point: Annotated[
        str,
        Field(max_length=1024),
        matching(r"^([A-Za-z_][\w.]*:)?[A-Za-z_]\w*$", "a class in gymnasium.wrappers, or package.module:Class"),
    ]
    """Name of a class in `gymnasium.wrappers`, such as `FlattenObservation`, or `package.module:Class` if the operator
    allows it."""
    kwargs: Arguments = Field(default_factory=dict)
    """Keyword arguments of the wrapper, with at most 16,384 characters as JSON."""


EnvironmentId = Annotated[str, Field(min_length=1, max_length=1024)]


class Environment(workload.Params):
    """The task: a Gymnasium environment, created in every observer."""

    id: EnvironmentId
    """An id in Gymnasium's registry (`CartPole-v1`) or in that of the old Gym (`gym:CartPole-v1`, needs the extra
    `rolecall[gym]`), an id that a module registers (`package.module:Name-v0`), or an `Env` class or function
    (`package.module:Class`). The operator must allow the module, as for builders."""
    kwargs: Arguments = Field(default_factory=dict)
    """Keyword arguments of the environment, with at most 16,384 characters as JSON."""
    max_episode_steps: Count | None = None
    """Maximum number of steps of an episode; by default the id's own limit, or none for an entry point."""
    wrappers: Annotated[
        tuple[
            Annotated[Wrapper, BeforeValidator(to_object("entry_point"), json_schema_input_type=Name | Wrapper)], ...
        ],
        Field(max_length=100),
        BeforeValidator(to_tuple),
    ] = ()
    """Wrappers around each environment, innermost first: names, or objects."""
    vectorization: Literal["loop", "own"] = "loop"
    """Execution of an observer's environments. `loop`: one after the other; `own`: with the environment's vector
    implementation (the `vector_entry_point` of its id), which is many times faster if it exists."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.vectorization == "own" and self.wrappers:
            raise ValueError("wrappers apply to single environments and need vectorization: loop")
        if self.legacy_id is not None:
            if not self.legacy_id or ":" in self.legacy_id:  # Gym would import what is before the colon.
                raise ValueError(
                    f"id {self.id!r} is not in the form of the old Gym's registry; use an id such as gym:CartPole-v1"
                )
            if self.vectorization == "own":
                raise ValueError(
                    "vectorization: own does not exist for environments of the old Gym; use vectorization: loop"
                )
        return self

    @property
    def legacy_id(self) -> str | None:
        """The id in the registry of the old Gym; None for other environments."""
        return self.id.removeprefix(_LEGACY) if self.id.startswith(_LEGACY) else None

    @property
    def is_entry_point(self) -> bool:
        """True for `module:Class`. In `module:id` the id has a version, so it is not a Python identifier."""
        _, colon, attribute = self.id.partition(":")
        return self.legacy_id is None and bool(colon) and attribute.isidentifier()
