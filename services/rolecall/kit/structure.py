"""The structure of a custom model, for checks before it is built with its weights."""

import warnings
from typing import Any

import torch
from torch import nn

from rolecall.kit.builders import Builder, build
from rolecall.spec.errors import InputError


def structure_of(chosen: Builder, *given: Any) -> Any:
    """What the builder returns for `given`, on torch's meta device: modules without memory for their weights.

    None if the builder fails there, for example because it computes with the values of weights.
    """
    try:
        # Weights that a builder reads from a file are not loaded, of which torch warns.
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            return build(chosen, *given)
    except Exception:  # noqa: BLE001 - custom code may raise anything, which it also does when the model is built
        return None


def require_weights(model: nn.Module, name: str) -> None:
    """Raises `InputError` for a model without memory for its weights: the builder returned that of an earlier call."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise InputError(f"{name} returns a model that it has built before; it must build a new one in each call")
