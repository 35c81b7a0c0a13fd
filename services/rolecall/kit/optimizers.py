"""Torch's optimizers by the names that the parameters give them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from rolecall.kit import params as spec


def dense_optimizer(chosen: spec.Sgd | spec.Adam | spec.AdamW) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class and arguments of an optimizer of dense gradients."""
    match chosen:
        case spec.Sgd():
            return SGD, {"lr": chosen.lr, "momentum": chosen.momentum, "weight_decay": chosen.weight_decay}
        case spec.AdamW():
            kind: type[Optimizer] = AdamW
        case spec.Adam():
            kind = Adam
    return kind, {"lr": chosen.lr, "betas": chosen.betas, "eps": chosen.eps, "weight_decay": chosen.weight_decay}


def scale_rates(optimizer: Optimizer, factor: float) -> None:
    """Set every learning rate to `factor` times the one that the optimizer began with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def set_gradients(parameters: Iterable[nn.Parameter], gradients: dict[torch.Tensor, torch.Tensor]) -> None:
    """Move a distributed autograd context's gradients to where plain optimizers look for them."""
    for parameter in parameters:
        parameter.grad = gradients.get(parameter)
