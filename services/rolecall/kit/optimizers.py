"""Torch's optimizers by the names that the parameters give them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from rolecall.kit import params as spec


@dataclass(frozen=True, slots=True)
class OptimizerChoice:
    """The class of an optimizer and its arguments; may be sent to other workers."""

    kind: type[Optimizer]
    arguments: dict[str, Any]

    def build(self, parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]]) -> Optimizer:
        """The optimizer of these parameters, or groups of parameters."""
        return self.kind(parameters, **self.arguments)


def dense_optimizer(chosen: spec.Sgd | spec.Adam | spec.AdamW) -> OptimizerChoice:
    """An optimizer of dense gradients."""
    match chosen:
        case spec.Sgd():
            arguments = {"lr": chosen.lr, "momentum": chosen.momentum, "weight_decay": chosen.weight_decay}
            return OptimizerChoice(SGD, arguments)
        case spec.AdamW():
            kind: type[Optimizer] = AdamW
        case spec.Adam():
            kind = Adam
    arguments = {"lr": chosen.lr, "betas": chosen.betas, "eps": chosen.eps, "weight_decay": chosen.weight_decay}
    return OptimizerChoice(kind, arguments)


def sparse_optimizer(chosen: spec.SparseSgd | spec.SparseAdagrad | spec.SparseAdam) -> OptimizerChoice:
    """An optimizer of sparse gradients; torch's other ones refuse them."""
    match chosen:
        case spec.SparseSgd():
            return OptimizerChoice(SGD, {"lr": chosen.lr})
        case spec.SparseAdagrad():
            first = chosen.initial_accumulator
            return OptimizerChoice(Adagrad, {"lr": chosen.lr, "initial_accumulator_value": first, "eps": chosen.eps})
        case spec.SparseAdam():
            return OptimizerChoice(SparseAdam, {"lr": chosen.lr, "betas": chosen.betas, "eps": chosen.eps})


def scale_rates(optimizer: Optimizer, factor: float) -> None:
    """Set every learning rate to `factor` times the one that the optimizer began with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def set_gradients(parameters: Iterable[nn.Parameter], gradients: dict[torch.Tensor, torch.Tensor]) -> None:
    """Move a distributed autograd context's gradients to where plain optimizers look for them."""
    for parameter in parameters:
        parameter.grad = gradients.get(parameter)


def squared_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The sum of the squares of all gradients; 0 if there is none."""
    norms = [parameter.grad.norm() for parameter in parameters if parameter.grad is not None]
    return float(torch.stack(norms).double().square().sum()) if norms else 0.0


def scale_gradients(parameters: Iterable[nn.Parameter], scale: float) -> None:
    """Multiply all gradients; by 1 leaves them as they are, to the bit."""
    for parameter in parameters:
        if parameter.grad is not None and scale != 1.0:
            parameter.grad.mul_(scale)
