"""What trainers do with the gradients of a step, where a part of the weights lies on parameter servers."""

from typing import Protocol

import torch


class UpdateProtocol(Protocol):
    """Applies the gradients that a backward pass left in a distributed autograd context."""

    def apply(self, context_id: int, step: int, rate_factor: float) -> None:
        """Returns once the next step may look vectors up."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizer state that this trainer holds."""
        ...

    def restore(self, tensors: dict[str, torch.Tensor]) -> None:
        """Put back what `state` gave."""
        ...
