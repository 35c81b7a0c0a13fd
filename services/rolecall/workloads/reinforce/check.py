"""Checks of `reinforce` jobs before the gang starts. Torch-free."""

import importlib

from rolecall.spec.role import Role
from rolecall.workloads.reinforce.params import Params


def check_counts(params: Params, counts: dict[Role, int]) -> None:
    """Raises `ValueError` if `least_observers` or the inference batch exceeds the number of observers."""
    observers = counts[Role.OBSERVER]
    if params.least_observers > observers:
        raise ValueError(
            f"least_observers is {params.least_observers}, but the job has {observers} observers; "
            f"set it to at most {observers}, or use more observers"
        )
    if params.inference.batch is not None and params.inference.batch > observers:
        raise ValueError(
            f"inference.batch {params.inference.batch} would never be full with {observers} observers; "
            f"set it to at most {observers}"
        )


def check_node(params: Params, role: Role) -> None:
    """Raises `InputError` unless this node can create the environment and policies support its spaces."""
    # The master imports this file, and must not import Gymnasium and the dependencies of environments.
    environments = importlib.import_module("rolecall.workloads.reinforce.environments")
    environments.check(params)
