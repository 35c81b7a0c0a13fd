"""Forward and backward passes of one update, in closed form where that is known.

The built-in networks are so small that autograd and per-parameter calls would take most of an update's time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.flat import as_one_vector
from rolecall.kit.native import library, update_loops
from rolecall.workloads.reinforce.model import ActorCritic, CategoricalHead, GaussianHead, Policy

_ROWS = 2048
"""Transitions in one pass through the layers: the results of more would not fit into a core's cache."""


class Distribution(ABC):
    """The distribution of the actions [b, ...] that a head makes of the network outputs [b, outputs]."""

    log_probs: Tensor
    """[b], of the actions, in nats."""
    entropies: Tensor
    """[b], in nats."""

    @abstractmethod
    def backward(self, log_probs: Tensor, entropy: float) -> Tensor:
        """The gradient [b, outputs] of the network outputs, from those of the log-probabilities [b] and of every
        entropy. Also sets the gradient of the head's parameters, if any."""


class _Categorical(Distribution):
    def __init__(self, outputs: Tensor, actions: Tensor) -> None:
        self._actions = actions.long().unsqueeze(-1)
        self._logs = outputs.log_softmax(-1)
        self._probs = self._logs.exp()
        self.log_probs = self._logs.gather(-1, self._actions).squeeze(-1)
        self.entropies = -(self._probs * self._logs).sum(-1)

    def backward(self, log_probs: Tensor, entropy: float) -> Tensor:
        weights = log_probs.unsqueeze(-1)
        factors = -weights
        if entropy:
            factors = factors - entropy * (self._logs + self.entropies.unsqueeze(-1))
        return (factors * self._probs).scatter_add_(-1, self._actions, weights)


class _Gaussian(Distribution):
    def __init__(self, head: GaussianHead, outputs: Tensor, actions: Tensor) -> None:
        self._log_deviation = head.log_deviation
        self._deviation = head.log_deviation.exp()
        self._scores = (actions - outputs) / self._deviation
        self.log_probs = head.log_probs(outputs, actions)
        self.entropies = head.entropy(outputs)

    def backward(self, log_probs: Tensor, entropy: float) -> Tensor:
        weights = log_probs.unsqueeze(-1)
        gradient = (weights * (self._scores.square() - 1)).sum(0) + entropy * len(log_probs)
        if self._log_deviation.grad is None:
            self._log_deviation.grad = gradient
        else:
            self._log_deviation.grad.copy_(gradient)
        return weights * self._scores / self._deviation


@torch.no_grad()
def distribution(head: CategoricalHead | GaussianHead, outputs: Tensor, actions: Tensor) -> Distribution:
    if isinstance(head, CategoricalHead):
        return _Categorical(outputs, actions)
    return _Gaussian(head, outputs, actions)


class Backpropagation(ABC):
    """Computes the gradients of a policy's parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter], max_norm: float | None) -> None:
        self.parameters = parameters
        """The parameters that the optimizer updates."""
        self._max_norm = max_norm

    @abstractmethod
    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """The network outputs [b, outputs] and values [b] of encoded observations [b, ...], without autograd graphs."""

    @abstractmethod
    def backward(self, outputs: Tensor, values: Tensor) -> None:
        """Set the gradients of the network, from those of the results of the last `forward`."""

    def clip(self) -> None:
        """Scale all gradients of the policy down to the maximum norm, if there is one and theirs is larger."""
        if self._max_norm is not None:
            self._clip(self._max_norm)

    @abstractmethod
    def _clip(self, max_norm: float) -> None: ...


class _Autograd(Backpropagation):
    """Any network."""

    def __init__(self, policy: Policy, max_norm: float | None) -> None:
        super().__init__(list(policy.parameters()), max_norm)
        self._network = policy.network

    @torch.enable_grad()
    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        self._results = self._network(observations)
        outputs, values = self._results
        return outputs.detach(), values.detach()

    def backward(self, outputs: Tensor, values: Tensor) -> None:
        # The gradient of a single parameter stays where it is, because its step has its address, see `step_of`. Of
        # several parameters, those that are unused in a minibatch have none, so that their optimizer skips them.
        self._network.zero_grad(set_to_none=len(self.parameters) > 1)
        torch.autograd.backward(self._results, [outputs, values])

    def _clip(self, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(self.parameters, max_norm)


class _Mlp(Backpropagation):
    """The built-in network without dropout, with all parameters in one vector, and all gradients in another."""

    def __init__(self, policy: Policy, network: ActorCritic, max_norm: float | None) -> None:
        vector = as_one_vector(policy)
        super().__init__([vector], max_norm)
        assert vector.grad is not None
        self._gradients = vector.grad
        self._actor, self._critic = _TrainedLayers(network.actor), _TrainedLayers(network.critic)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        parts = observations.flatten(1).split(_ROWS)
        return self._actor.forward(parts), self._critic.forward(parts).squeeze(-1)

    def backward(self, outputs: Tensor, values: Tensor) -> None:
        self._actor.backward(outputs)
        self._critic.backward(values.unsqueeze(-1))

    def _clip(self, max_norm: float) -> None:
        if library.is_native(self._gradients):
            update_loops.clip_norm(self._gradients, max_norm)
            return
        # As `clip_grad_norm_` does for each parameter.
        self._gradients.mul_((max_norm / (torch.linalg.vector_norm(self._gradients) + 1e-6)).clamp_(max=1.0))


class Layers:
    """The forward pass of linear layers with an activation function between them."""

    def __init__(self, modules: nn.Sequential) -> None:
        self._linear = [module for module in modules if isinstance(module, nn.Linear)]
        # Attributes of modules and parameters cost as much time as a small operation.
        self._weights = [(module.weight.detach(), module.bias.detach()) for module in self._linear]
        self._tanh = any(isinstance(module, nn.Tanh) for module in modules)
        weight = self._linear[0].weight
        self._has_fast_tanh = self._tanh and weight.dtype == torch.float32 and library.is_native(weight)

    def outputs(self, inputs: Tensor) -> Tensor:
        """The outputs [b, outputs] of inputs [b, inputs]."""
        return F.linear(self._layer_inputs(inputs)[-1], *self._weights[-1])

    def _layer_inputs(self, inputs: Tensor) -> list[Tensor]:
        found = [inputs]
        for weight, bias in self._weights[:-1]:
            hidden = F.linear(found[-1], weight, bias)
            if self._has_fast_tanh:
                update_loops.tanh(hidden)
            elif self._tanh:
                hidden.tanh_()
            else:
                hidden.relu_()
            found.append(hidden)
        return found


class _TrainedLayers(Layers):
    """Also the backward pass. Large inputs pass in parts that fit into a core's cache."""

    def __init__(self, modules: nn.Sequential) -> None:
        super().__init__(modules)
        self._gradients = [(_gradient(module.weight), _gradient(module.bias)) for module in self._linear]

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        """The outputs [b, outputs] of inputs, which are given in parts [<= _ROWS, inputs]."""
        self._inputs = [self._layer_inputs(part) for part in parts]
        outputs = [F.linear(inputs[-1], *self._weights[-1]) for inputs in self._inputs]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def backward(self, gradient: Tensor) -> None:
        """Set the gradients of weights and biases, from that of the outputs."""
        for number, (inputs, part) in enumerate(zip(self._inputs, gradient.split(_ROWS), strict=True)):
            self._backward_part(inputs, part, accumulate=number > 0)

    def _backward_part(self, inputs: list[Tensor], gradient: Tensor, *, accumulate: bool) -> None:
        last = len(self._weights) - 1
        for index in range(last, -1, -1):
            weight_gradient, bias_gradient = self._gradients[index]
            if index < last:
                # The activation's results are the inputs of the next layer.
                gradient = gradient @ self._weights[index + 1][0]
                gradient = self._activation_backward(gradient, inputs[index + 1], bias_gradient, accumulate=accumulate)
            else:
                _add_rows(gradient, bias_gradient, accumulate=accumulate)
            if accumulate:
                weight_gradient.addmm_(gradient.t(), inputs[index])
            else:
                torch.mm(gradient.t(), inputs[index], out=weight_gradient)

    def _activation_backward(
        self, gradient: Tensor, results: Tensor, bias_gradient: Tensor, *, accumulate: bool
    ) -> Tensor:
        """The gradient [b, n] of the inputs of the activation function, from that of its results [b, n]. It is also
        summed, for the bias before it."""
        if library.is_native(gradient, results):
            loop = update_loops.tanh_backward if self._tanh else update_loops.relu_backward
            loop(gradient, results, bias_gradient, accumulate=accumulate)
            return gradient
        if self._tanh:
            gradient = torch.ops.aten.tanh_backward(gradient, results)
        else:
            gradient = torch.ops.aten.threshold_backward(gradient, results, 0)
        _add_rows(gradient, bias_gradient, accumulate=accumulate)
        return gradient


def _add_rows(gradient: Tensor, sums: Tensor, *, accumulate: bool) -> None:
    if accumulate:
        sums.add_(gradient.sum(0))
    else:
        torch.sum(gradient, 0, out=sums)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def outputs_of(policy: Policy) -> Callable[[Tensor], Tensor]:
    """The fastest way to `policy.outputs` without autograd graphs. It keeps references to the parameters."""
    network = policy.network
    if not isinstance(network, ActorCritic) or network.has_dropout:
        return policy.outputs
    layers = Layers(network.actor)
    return lambda observations: layers.outputs(policy.normalized(observations).flatten(1))


def values_of(policy: Policy) -> Callable[[Tensor], Tensor]:
    """The fastest way to `policy.values` without autograd graphs. It keeps references to the parameters."""
    network = policy.network
    if not isinstance(network, ActorCritic):
        return policy.values
    layers = Layers(network.critic)
    return lambda observations: layers.outputs(policy.normalized(observations).flatten(1)).squeeze(-1)


def backpropagation(policy: Policy, max_norm: float | None) -> Backpropagation:
    """The fastest way for this policy. It keeps references to parameters and gradients, so don't replace them.
    `max_norm` is that of all gradients."""
    network = policy.network
    if isinstance(network, ActorCritic) and not network.has_dropout:
        return _Mlp(policy, network, max_norm)
    return _Autograd(policy, max_norm)
