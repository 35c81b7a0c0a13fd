"""Loops that update a small network (`update_loops.c`). The results are those of torch except for rounding,
which `tanh` describes."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.adam import Adam

from rolecall.kit.native.library import is_native, loop, pointer, require_shape


def clip_norm(gradient: Tensor, max_norm: float) -> None:
    """Scale the gradient down to the norm `max_norm` if its own is larger, as torch's `clip_grad_norm_`."""
    loop("clip_norm", gradient)(ctypes.c_int64(gradient.numel()), pointer(gradient), ctypes.c_double(max_norm))


def adam_step(optimizer: Adam) -> Callable[[], None] | None:
    """A function that does `optimizer.step()` with the present rate, if there is a loop for it.

    There is one for an optimizer with state, of a single tensor with a gradient. Don't replace the tensor or the state.
    The function raises `RuntimeError` if the gradient was replaced.
    """
    (group, *groups) = optimizer.param_groups
    (weight, *others) = group["params"]
    state = optimizer.state.get(weight)
    if groups or others or not state or weight.grad is None or group["amsgrad"] or group["maximize"]:
        return None
    mean, square, steps = state["exp_avg"], state["exp_avg_sq"], state["step"]
    if not is_native(weight, weight.grad, mean, square) or steps.dtype != torch.float32 or steps.device.type != "cpu":
        return None
    beta1, beta2 = group["betas"]
    decays = (0.0, group["weight_decay"]) if group["decoupled_weight_decay"] else (group["weight_decay"], 0.0)
    tensors = [pointer(one) for one in (weight, weight.grad, mean, square, steps)]
    numbers = [ctypes.c_double(one) for one in (beta1, beta2, group["lr"], group["eps"], *decays)]
    step, count = loop("step_adam", weight), ctypes.c_int64(weight.numel())

    gradient = weight.grad

    def advance() -> None:
        if weight.grad is not gradient:
            raise RuntimeError("the gradient of the parameter was replaced; set its values instead")
        step(count, *tensors, *numbers)
        torch.autograd.graph.increment_version((weight, mean, square, steps))

    return advance


def tanh(numbers: Tensor) -> None:
    """Replace contiguous 32-bit numbers with their hyperbolic tangents, with an error below 8 units in the last place.

    Raises `ValueError` for other tensors.
    """
    if numbers.dtype != torch.float32 or not numbers.is_cpu or not numbers.is_contiguous():
        raise ValueError("the numbers must be contiguous, of 32 bits and on the CPU")
    loop("tanh", numbers)(ctypes.c_int64(numbers.numel()), pointer(numbers))


def tanh_backward(gradient: Tensor, results: Tensor, sums: Tensor, *, accumulate: bool) -> None:
    """Turn the gradient [b, n] of the results of tanh into that of its inputs, in place.

    Also set `sums` [n] to its sum over b, or add it with `accumulate`.
    """
    _backward("tanh_backward", gradient, results, sums, accumulate=accumulate)


def relu_backward(gradient: Tensor, results: Tensor, sums: Tensor, *, accumulate: bool) -> None:
    """As `tanh_backward`, of the rectifier max(x, 0)."""
    _backward("relu_backward", gradient, results, sums, accumulate=accumulate)


def _backward(name: str, gradient: Tensor, results: Tensor, sums: Tensor, *, accumulate: bool) -> None:
    count, width = gradient.shape
    require_shape("results", results, (count, width))
    require_shape("sums", sums, (width,))
    loop(name, gradient)(
        ctypes.c_int64(count),
        ctypes.c_int64(width),
        pointer(results),
        pointer(gradient),
        pointer(sums),
        ctypes.c_int64(accumulate),
    )
