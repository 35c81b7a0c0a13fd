# pyright: standard
"""Torch optimizers for the `optimizer` parameters, and operations on gradients and weights."""

import math
import mmap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam
from torch.overrides import TorchFunctionMode

from rolecall.kit import params as spec


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """An optimizer class and its arguments; picklable."""

    kind: type[Optimizer]
    arguments: dict[str, Any]

    @property
    def remote_arguments(self) -> dict[str, Any]:
        """The arguments for torch's `DistributedOptimizer`."""
        # With torch 2.11, the remote updates are TorchScript, which has no fused optimizers.
        return {name: value for name, value in self.arguments.items() if name != "fused"}

    def build(self, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]]) -> Optimizer:
        """An optimizer of these parameters or parameter groups."""
        with _UnusedZeros():
            return self.kind(parameters, **self.arguments)


def unused_zeros_like(weight: Tensor) -> Tensor:
    """As `torch.zeros_like`, but on CPUs the kernel provides the memory of each page at its first use.

    Optimizers of large tables start several times faster with it, and the state of rows that are never used takes no
    memory.
    """
    if weight.device.type != "cpu" or weight.numel() == 0:
        return torch.zeros_like(weight, requires_grad=False)
    # Not NumPy's zeros, which ask for huge pages: where memory is fragmented, the kernel takes seconds to make these.
    pages = mmap.mmap(-1, weight.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=weight.dtype).view(weight.shape)


class _UnusedZeros(TorchFunctionMode):
    """Optimizers that fill their state with zeros when they are built get `unused_zeros_like`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.full_like and args[1:] == (0,):
            return unused_zeros_like(args[0])
        return func(*args, **(kwargs or {}))


def dense_optimizer(chosen: spec.Sgd | spec.Adam | spec.AdamW) -> OptimizerChoice:
    match chosen:
        case spec.Sgd():
            arguments = {"lr": chosen.lr, "momentum": chosen.momentum, "weight_decay": chosen.weight_decay}
            return OptimizerChoice(SGD, arguments)
        case spec.AdamW():
            kind: type[Optimizer] = AdamW
        case spec.Adam():
            kind = Adam
    arguments = {"lr": chosen.lr, "betas": chosen.betas, "eps": chosen.eps, "weight_decay": chosen.weight_decay}
    # One pass over each parameter, where the default takes about ten.
    return OptimizerChoice(kind, {**arguments, "fused": True})


def sparse_optimizer(chosen: spec.SparseSgd | spec.SparseAdagrad | spec.SparseAdam) -> OptimizerChoice:
    """An optimizer for sparse gradients, which the other torch optimizers reject."""
    match chosen:
        case spec.SparseSgd():
            return OptimizerChoice(SGD, {"lr": chosen.lr})
        case spec.SparseAdagrad():
            first = chosen.initial_accumulator
            return OptimizerChoice(Adagrad, {"lr": chosen.lr, "initial_accumulator_value": first, "eps": chosen.eps})
        case spec.SparseAdam():
            return OptimizerChoice(SparseAdam, {"lr": chosen.lr, "betas": chosen.betas, "eps": chosen.eps})


def scale_rates(optimizer: Optimizer, factor: float) -> None:
    """Set every learning rate to `factor` times its initial value."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def set_gradients(parameters: Iterable[nn.Parameter], gradients: dict[torch.Tensor, torch.Tensor]) -> None:
    """Set `parameter.grad` from the gradients of a distributed autograd context."""
    for parameter in parameters:
        parameter.grad = gradients.get(parameter)


def squared_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The sum of squares of all gradients; 0 without gradients."""
    norms = [parameter.grad.norm() for parameter in parameters if parameter.grad is not None]
    return float(torch.stack(norms).double().square().sum()) if norms else 0.0


def scale_gradients(parameters: Iterable[nn.Parameter], scale: float) -> None:
    """Multiply all gradients in place; a `scale` of 1 leaves every bit unchanged."""
    for parameter in parameters:
        if parameter.grad is not None and scale != 1.0:
            parameter.grad.mul_(scale)


def are_finite(weights: Iterable[nn.Parameter]) -> bool:
    """False if a value is NaN or infinite. Frozen weights don't count: a mask can be -inf."""
    # Unlike `isfinite`, the extremes need no memory, which a server may lack for a large table. NaN is both extremes.
    trained = (weight.detach() for weight in weights if weight.requires_grad and weight.numel())
    return all(math.isfinite(extreme) for weight in trained for extreme in weight.aminmax())
