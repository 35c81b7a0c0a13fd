"""The outputs and values of a policy, and the gradients of its parameters. No I/O, no clock.

A policy is a torch module with a network from encoded observations [b, ...] to outputs [b, outputs], which describe
the distribution of the actions, and values [b].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rolecall.kit.flat import as_one_vector
from rolecall.kit.native import library, update_loops
from rolecall.kit.policy_gradients.mlp import DifferentiableLayers, in_parts

Encode = Callable[[Tensor], Tensor]
"""Maps raw observations to the inputs of the network."""


class DifferentiablePolicy(ABC):
    """A policy whose gradients an update computes.

    It keeps references to the parameters and their gradients, so don't replace them.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], encode: Encode, log_deviation: nn.Parameter | None = None
    ) -> None:
        self.parameters = parameters
        """The parameters that the optimizer updates."""
        self.log_deviation = log_deviation
        """[outputs], of Gaussian actions around the outputs; None if the outputs are the logits of choices."""
        self._encode = encode

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    @abstractmethod
    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The outputs [b, outputs] and values [b] of raw observations [b, ...], without autograd graphs."""

    @abstractmethod
    def values(self, observations: Tensor) -> Tensor:
        """Only the values [b]; doesn't count as a `forward`."""

    @abstractmethod
    def backward(self, outputs: Tensor, values: Tensor) -> None:
        """Set the gradients of the network, from those of the results of the last `forward`."""

    @abstractmethod
    def clip_gradients(self, max_norm: float) -> None:
        """Scale all gradients down if their norm is larger than `max_norm`."""


class AutogradPolicy(DifferentiablePolicy):
    """Any network."""

    def __init__(
        self, module: nn.Module, network: nn.Module, encode: Encode, log_deviation: nn.Parameter | None = None
    ) -> None:
        super().__init__(list(module.parameters()), encode, log_deviation)
        self._network = network

    @torch.enable_grad()
    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        self._results = self._network(self._encode(observations))
        outputs, values = self._results
        return outputs.detach(), values.detach()

    @torch.no_grad()
    def values(self, observations: Tensor) -> Tensor:
        return self._network(self._encode(observations))[1]

    def backward(self, outputs: Tensor, values: Tensor) -> None:
        # The gradient of a single parameter stays where it is, because its step has its address, see `step_of`. Of
        # several parameters, those that are unused in a minibatch have none, so that their optimizer skips them.
        self._network.zero_grad(set_to_none=len(self.parameters) > 1)
        torch.autograd.backward(self._results, [outputs, values])

    def clip_gradients(self, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, max_norm)


class MlpPolicy(DifferentiablePolicy):
    """Two MLPs, for the outputs and the values, of linear layers with tanh or ReLU between them.

    All parameters of the module become parts of one vector, and all gradients of another.
    """

    def __init__(
        self,
        module: nn.Module,
        actor: nn.Sequential,
        critic: nn.Sequential,
        encode: Encode,
        log_deviation: nn.Parameter | None = None,
    ) -> None:
        vector = as_one_vector(module)
        super().__init__([vector], encode, log_deviation)
        assert vector.grad is not None
        self._gradients = vector.grad
        self._actor, self._critic = DifferentiableLayers(actor), DifferentiableLayers(critic)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        parts = in_parts(self._encode(observations).flatten(1))
        return self._actor.forward(parts), self._critic.forward(parts).squeeze(-1)

    def values(self, observations: Tensor) -> Tensor:
        return self._critic.outputs(self._encode(observations).flatten(1)).squeeze(-1)

    def backward(self, outputs: Tensor, values: Tensor) -> None:
        self._actor.backward(outputs)
        self._critic.backward(values.unsqueeze(-1))

    def clip_gradients(self, max_norm: float) -> None:
        if library.is_native(self._gradients):
            update_loops.clip_norm(self._gradients, max_norm)
            return
        # As `clip_grad_norm_` does for each parameter.
        self._gradients.mul_((max_norm / (torch.linalg.vector_norm(self._gradients) + 1e-6)).clamp_(max=1.0))
