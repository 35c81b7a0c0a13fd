"""Advantages, and the loss of a policy, in one pass each (`policy_loops.c`). The results are those of torch except for
rounding."""

import ctypes

from torch import Tensor

from rolecall.kit.native.library import loop, pointer, require_shape


def advantages(
    rewards: Tensor, values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, gae_lambda: float
) -> Tensor:
    """`rolecall.kit.environments.returns.advantages`, with the same arguments: numbers [T, n], flags [T, n], and values
    [T + 1, n]. Raises `ValueError` for other shapes.
    """
    steps, count = rewards.shape
    require_shape("values", values, (steps + 1, count))
    require_shape("flags of terminated episodes", terminated, (steps, count))
    require_shape("flags of truncated episodes", truncated, (steps, count))
    found = values.new_empty(steps, count)
    loop("advantages", values)(
        ctypes.c_int64(steps),
        ctypes.c_int64(count),
        *map(pointer, (rewards, values, terminated, truncated)),
        ctypes.c_double(gamma),
        ctypes.c_double(gamma * gae_lambda),
        pointer(found),
    )
    return found


def ppo(  # noqa: PLR0917 - in the order of the loop's arguments
    outputs: Tensor,
    values: Tensor,
    actions: Tensor,
    old_log_probs: Tensor,
    old_values: Tensor,
    advantages: Tensor,
    *,
    normalize_advantages: bool,
    clip: float,
    value_clip: float,
    value_coefficient: float,
    entropy_coefficient: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The terms of PPO's loss for a categorical policy, and the gradients of the loss.

    `outputs` [b, choices] are logits, and the others [b]: the values, the chosen actions, the log-probabilities and
    values at the time of the choice, and the advantages. The infinite `value_clip` doesn't clip.

    Returns the terms [4], and the gradients of `outputs` and of `values`. The terms are the policy's loss, half the
    mean squared error of the values, the mean entropy, and the KL divergence by Schulman's k3 estimator (2020). Raises
    `IndexError` for an action that is no choice, and `ValueError` for other shapes.
    """
    count, choices = outputs.shape
    columns = {
        "values": values,
        "actions": actions,
        "old log-probabilities": old_log_probs,
        "old values": old_values,
        "advantages": advantages,
    }
    for name, column in columns.items():
        require_shape(name, column, (count,))
    terms, output_gradients, value_gradients = (values.new_empty(*size) for size in ((4,), (count, choices), (count,)))
    wrong = loop("ppo", outputs)(
        ctypes.c_int64(count),
        ctypes.c_int64(choices),
        pointer(outputs),
        *map(pointer, columns.values()),
        ctypes.c_int64(normalize_advantages),
        ctypes.c_double(clip),
        ctypes.c_double(value_clip),
        ctypes.c_double(value_coefficient),
        ctypes.c_double(entropy_coefficient),
        pointer(output_gradients),
        pointer(value_gradients),
        pointer(terms),
    )
    if wrong >= 0:
        raise IndexError(f"action {int(actions[wrong])} is not one of the {choices} choices")
    return terms, output_gradients, value_gradients
