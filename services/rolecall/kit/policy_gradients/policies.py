# pyright: standard
"""The outputs and values of a policy, and the gradients of its parameters. No I/O, no clock.

A policy is a torch module with a network from encoded observations [b, ...] to outputs [b, outputs], which describe
the distribution of the actions, and values [b].
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn

from rolecall.kit.flat import as_one_vector
from rolecall.kit.native import library, update_loops
from rolecall.kit.policy_gradients.mlp import ROWS, DifferentiableLayers, in_parts

Encode = Callable[[Tensor], Tensor]
"""Maps raw observations to the inputs of the network."""
_T = TypeVar("_T")


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

    @contextmanager
    def updating(self) -> Generator[None]:
        """A context for all that belongs to one update, in which a policy may use torch's threads in its own way.

        Torch's number of threads is that of the process: a thread that first uses torch within the context keeps it.
        """
        yield

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

    An update takes one thread, because its operations are too short for several. If torch has more, large batches pass
    through both networks at the same time. The results are those of one thread.
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
        self._threads = 1
        self._second_thread = ThreadPoolExecutor(1, "critic", initializer=torch.set_num_threads, initargs=(1,))

    @contextmanager
    def updating(self) -> Generator[None]:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(self._threads)
            self._threads = 1

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        parts = in_parts(self._encode(observations).flatten(1))
        outputs, values = self._pass_both(
            len(observations), lambda: self._actor.forward(parts), lambda: self._critic.forward(parts)
        )
        return outputs, values.squeeze(-1)

    def values(self, observations: Tensor) -> Tensor:
        return self._critic.outputs(self._encode(observations).flatten(1)).squeeze(-1)

    def backward(self, outputs: Tensor, values: Tensor) -> None:
        gradient = values.unsqueeze(-1)
        self._pass_both(len(outputs), lambda: self._actor.backward(outputs), lambda: self._critic.backward(gradient))

    def clip_gradients(self, max_norm: float) -> None:
        if library.is_native(self._gradients):
            update_loops.clip_norm(self._gradients, max_norm)
            return
        # As `clip_grad_norm_` does for each parameter.
        self._gradients.mul_((max_norm / (torch.linalg.vector_norm(self._gradients) + 1e-6)).clamp_(max=1.0))

    def _pass_both(self, rows: int, actor: Callable[[], _T], critic: Callable[[], _T]) -> tuple[_T, _T]:
        """Run a pass through each network, at the same time if there are many rows and several threads."""
        if self._threads == 1 or rows <= ROWS or self.device.type != "cpu":
            return actor(), critic()
        values = self._second_thread.submit(critic)
        try:
            return actor(), values.result()
        finally:
            wait([values])  # An error of the actor must not leave the critic's pass behind.
