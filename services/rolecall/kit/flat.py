# pyright: standard
"""A module's parameters as one vector, which an optimizer updates in one pass.

Only for optimizers whose update is elementwise. Checkpoints don't depend on it: they have each parameter's state.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.optim.adam import Adam, adam

from rolecall.kit.checkpoint import Tensors, flatten_optimizer
from rolecall.kit.native.update_loops import adam_step

_PREFIX = "optimizer/"


def as_one_vector(module: nn.Module) -> nn.Parameter:
    """Move the parameters and gradients of a module, of one device and dtype, into one vector each. Returns the vector
    of the parameters, whose gradient is the vector of the gradients.
    """
    parameters = list(module.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    vector = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    vector.grad = torch.zeros_like(vector)
    parts = zip(parameters, vector.detach().split(sizes), vector.grad.split(sizes), strict=True)
    for parameter, values, gradients in parts:
        parameter.data = values.view_as(parameter)
        parameter.grad = gradients.view_as(parameter)
    return vector


def step_of(optimizer: torch.optim.Optimizer) -> Callable[[], object]:
    """The fastest way to `optimizer.step()`."""
    (parameter, *others) = optimizer.param_groups[0]["params"]
    # The first step creates the state, unless it is from a checkpoint. The first backward pass creates the gradient.
    if others or not isinstance(optimizer, Adam) or not optimizer.state or parameter.grad is None:
        return optimizer.step
    if native := adam_step(optimizer):
        return native
    group, state = optimizer.param_groups[0], optimizer.state[parameter]
    beta1, beta2 = group["betas"]
    # For a single small vector, hooks and the grouping of parameters take longer than the arithmetic.
    return partial(
        adam,
        [parameter],
        [parameter.grad],
        [state["exp_avg"]],
        [state["exp_avg_sq"]],
        [],
        [state["step"]],
        fused=True,
        amsgrad=False,
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
        decoupled_weight_decay=group["decoupled_weight_decay"],
    )


def split_state(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> dict[str, torch.Tensor]:
    """The state of an optimizer of the parameters or of their vector, as `flatten_optimizer` names that of an optimizer
    of the parameters.
    """
    state = flatten_optimizer(optimizer, _PREFIX)
    if not _has_vector(optimizer, parameters):
        return state
    sizes = [parameter.numel() for parameter in parameters]
    found: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        key = name.rpartition("/")[2]
        parts = value.split(sizes) if value.ndim else [value] * len(sizes)
        for index, (parameter, part) in enumerate(zip(parameters, parts, strict=True)):
            found[f"{_PREFIX}{index}/{key}"] = part.view_as(parameter).clone() if value.ndim else part.clone()
    return found


def join_state(
    tensors: Tensors, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> dict[str, torch.Tensor]:
    """The reverse of `split_state`: what `restore_optimizer` needs for this optimizer."""
    state = {name: value for name, value in tensors.items() if name.startswith(_PREFIX)}
    if not _has_vector(optimizer, parameters):
        return state
    first = [name for name in state if name.startswith(f"{_PREFIX}0/")]
    joined: dict[str, torch.Tensor] = {}
    for name in first:
        key = name.rpartition("/")[2]
        parts = [state[f"{_PREFIX}{index}/{key}"] for index in range(len(parameters))]
        joined[name] = torch.cat([part.flatten() for part in parts]) if parts[0].ndim else parts[0]
    return joined


def _has_vector(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> bool:
    return optimizer.param_groups[0]["params"][0] is not parameters[0]
