"""Passes through multilayer perceptrons (MLPs), without autograd graphs. No I/O, no clock.

The networks of policies are so small that autograd and per-parameter calls would take most of an update's time.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor, nn

from rolecall.kit.native import library, update_loops

ROWS = 2048
"""Rows in one pass through the layers: the results of more would not fit into a core's cache."""


class Layers:
    """The forward pass of linear layers with tanh or ReLU between them. Keeps references to the parameters."""

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


def in_parts(inputs: Tensor) -> Sequence[Tensor]:
    """The rows of inputs [b, ...] in parts that fit into a core's cache."""
    return inputs.split(ROWS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch's own types


class DifferentiableLayers(Layers):
    """Also the backward pass, into gradients that exist already. Keeps references to them, too."""

    def __init__(self, modules: nn.Sequential) -> None:
        super().__init__(modules)
        self._gradients = [(_gradient(module.weight), _gradient(module.bias)) for module in self._linear]

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        """The outputs [b, outputs] of inputs, which are given `in_parts`."""
        self._inputs = [self._layer_inputs(part) for part in parts]
        outputs = [F.linear(inputs[-1], *self._weights[-1]) for inputs in self._inputs]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def backward(self, gradient: Tensor) -> None:
        """Set the gradients of weights and biases, from that of the outputs of the last `forward`."""
        for number, (inputs, part) in enumerate(zip(self._inputs, in_parts(gradient), strict=True)):
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
