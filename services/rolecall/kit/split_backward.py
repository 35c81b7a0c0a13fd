"""Splits the backward pass of convolutions, so that the gradients of their weights can be computed later.

The gradients of the inputs are what the previous stage waits for. Convolutions have nearly all weights of a ResNet.
The gradients of all other weights are computed with those of the inputs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import nn

WeightPass = Callable[[], None]
"""Accumulates one convolution's gradients of weight and bias in their `.grad`."""


def split_backward(module: nn.Module, deferred: list[WeightPass]) -> None:
    """From now on, backward passes append the weight passes of the module's convolutions to `deferred`.

    A convolution with frozen or computed weights (`torch.nn.utils.parametrize`), with hooks on them, with other padding
    than zeros of a given width, or of a subclass is not split.
    """
    for conv in module.modules():
        if type(conv) is not nn.Conv2d or isinstance(conv.padding, str):
            continue  # The padding `same` can differ between two sides.
        if conv.padding_mode == "zeros" and _trains_own_weights(conv):
            setattr(conv, "_conv_forward", partial(_convolve, conv, deferred))  # noqa: B010 - other argument names


def _trains_own_weights(conv: nn.Conv2d) -> bool:
    """False if something else than the convolution's `.grad` depends on the gradients."""
    own = [value for value in (conv.weight, conv.bias) if value is not None]
    return all(
        value.is_leaf and value.requires_grad and not value._backward_hooks and not value._post_accumulate_grad_hooks  # pyright: ignore[reportPrivateUsage] - torch has no public name
        for value in own
    )


def _convolve(
    conv: nn.Conv2d, deferred: list[WeightPass], features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    if features.dim() == 3:  # One image without a batch. Its passes have no fourth dimension.
        return F.conv2d(features, weight, bias, conv.stride, conv.padding, conv.dilation, conv.groups)
    device = features.device.type
    if torch.is_autocast_enabled(device):
        features = features.to(torch.get_autocast_dtype(device))
    return _SplitConvolution.apply(features, weight, bias, conv, deferred)


class _SplitConvolution(torch.autograd.Function):
    """A convolution in the data type of its inputs, whose backward pass computes only the gradient of the inputs."""

    @staticmethod
    def forward(  # noqa: PLR0917 - torch passes no keywords
        ctx: Any,
        features: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        conv: nn.Conv2d,
        deferred: list[WeightPass],
    ) -> torch.Tensor:
        used = weight.to(features.dtype)
        ctx.save_for_backward(features, used)
        ctx.conv, ctx.deferred = conv, deferred
        offset = None if bias is None else bias.to(features.dtype)
        return F.conv2d(features, used, offset, conv.stride, conv.padding, conv.dilation, conv.groups)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None, None]:
        features, weight = ctx.saved_tensors
        ctx.deferred.append(partial(_weight_pass, ctx.conv, gradients[0], features, weight))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        return _gradients(ctx.conv, gradients[0], features, weight, (True, False, False))[0], None, None, None, None


@torch.no_grad()
def _weight_pass(conv: nn.Conv2d, gradient: torch.Tensor, features: torch.Tensor, weight: torch.Tensor) -> None:
    wanted = (False, True, conv.bias is not None)
    _, of_weight, of_bias = _gradients(conv, gradient, features, weight, wanted)
    for parameter, found in ((conv.weight, of_weight), (conv.bias, of_bias)):
        if parameter is None or found is None:
            continue
        if parameter.grad is None:
            parameter.grad = found.to(parameter.dtype)
        else:
            parameter.grad += found


def _gradients(
    conv: nn.Conv2d,
    gradient: torch.Tensor,
    features: torch.Tensor,
    weight: torch.Tensor,
    wanted: tuple[bool, bool, bool],
) -> tuple[torch.Tensor | None, ...]:
    """The wanted gradients of inputs, weight and bias."""
    sizes = None if conv.bias is None else list(conv.bias.shape)
    return torch.ops.aten.convolution_backward(
        gradient, features, weight, sizes, conv.stride, conv.padding, conv.dilation, False, [0, 0], conv.groups, wanted
    )
