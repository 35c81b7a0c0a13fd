"""The state of optimizers and random number generators as named tensors, for `save_part` and `load_part`.

tensors = {f"weights/{name}": value for name, value in model.state_dict().items()}
tensors |= flatten_optimizer(optimizer) | random_state(context.device)
part = context.checkpoints.save_part(step, "trainer-0", tensors)

tensors = context.checkpoints.load_part(manifest, "trainer-0")
model.load_state_dict(strip_prefix(tensors, "weights/"))
restore_optimizer(optimizer, tensors)
restore_random_state(tensors, context.device)
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rolecall.runtime.checkpoint import (
    Tensors,
    flatten_optimizer,
    random_state,
    restore_optimizer,
    restore_random_state,
    separate_memory,
)

__all__ = [
    "Tensors",
    "flatten_named_optimizer",
    "flatten_optimizer",
    "random_state",
    "restore_named_optimizer",
    "restore_optimizer",
    "restore_random_state",
    "separate_memory",
    "strip_prefix",
]


def strip_prefix(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, which is removed."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def flatten_named_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], prefix: str
) -> dict[str, Tensor]:
    """An optimizer's state as `<prefix><parameter name>/<key>`, which doesn't depend on how a model is cut."""
    return {
        f"{prefix}{name}/{key}": torch.as_tensor(value)
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if value is not None
    }


def restore_named_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Tensors, prefix: str
) -> None:
    """Restore the state from `flatten_named_optimizer`; `tensors` may have that of other parameters, too."""
    by_parameter: dict[nn.Parameter, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parameter, _, key = name.removeprefix(prefix).rpartition("/")
        if name.startswith(prefix) and parameter in parameters:
            by_parameter.setdefault(parameters[parameter], {})[key] = tensor
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {index: by_parameter[parameter] for index, parameter in enumerate(order) if parameter in by_parameter}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
