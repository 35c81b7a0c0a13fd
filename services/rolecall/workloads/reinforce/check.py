"""Checks of `reinforce` jobs before the gang starts. Torch-free."""

from rolecall.kit import Role
from rolecall.kit.builders import check_builder
from rolecall.workloads.reinforce.params import Custom, Params


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
    """Raises `InputError` unless the node can create the environment, policies support it, it has a reward threshold
    if the job needs one, and builders are allowed.
    """
    # The master imports this file, and must not import Gymnasium and the dependencies of environments.
    from rolecall.kit.environments import creation  # noqa: PLC0415

    creation.check(params.environment)
    if params.target_return == "threshold":
        creation.reward_threshold(params.environment)
    if isinstance(params.policy, Custom):
        check_builder(params.policy)
