"""The state of optimizers and random number generators as named tensors, for `save_part` and `load_part`.

tensors = {f"weights/{name}": value for name, value in model.state_dict().items()}
tensors |= flatten_optimizer(optimizer) | random_state(context.device)
part = context.checkpoints.save_part(step, "trainer-0", tensors)

tensors = context.checkpoints.load_part(manifest, "trainer-0")
model.load_state_dict(strip_prefix(tensors, "weights/"))
restore_optimizer(optimizer, tensors)
restore_random_state(tensors, context.device)
"""

from torch import Tensor

from rolecall.runtime.checkpoint import (
    Tensors,
    flatten_optimizer,
    random_state,
    restore_optimizer,
    restore_random_state,
)

__all__ = [
    "Tensors",
    "flatten_optimizer",
    "random_state",
    "restore_optimizer",
    "restore_random_state",
    "strip_prefix",
]


def strip_prefix(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, which is removed."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
