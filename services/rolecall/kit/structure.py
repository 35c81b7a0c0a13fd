"""The structure of a custom model: checks before it is built with its weights, and cuts between its children.

As in PyTorch's tutorial on pipelines, a part is the whole model without the other blocks: `forward` skips children that
are None, and entries that are missing from a `ModuleDict`.
"""

import copy
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from rolecall.kit.builders import Builder, build
from rolecall.spec.errors import InputError


def structure_of(chosen: Builder, *given: Any) -> Any:
    """The builder's result for `given` on torch's meta device: modules without memory for their weights.

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


def child_blocks(model: nn.Module) -> tuple[str, ...]:
    """The names of the model's children in order; of a `ModuleDict`, of its entries, such as `layers.0`."""
    return tuple(
        f"{name}.{entry}" if entry else name
        for name, child in model.named_children()
        for entry in (child if isinstance(child, nn.ModuleDict) else ("",))
    )


def keep_blocks(model: nn.Module, kept: Collection[str]) -> nn.Module:
    """A copy of the model without its other blocks; the copy shares the kept ones with the model."""
    children = dict[str, nn.Module | None]()
    for name, child in model._modules.items():  # pyright: ignore[reportPrivateUsage] - `named_children` leaves out `None`
        if isinstance(child, nn.ModuleDict):
            entries = {entry: block for entry, block in child.items() if f"{name}.{entry}" in kept}
            children[name] = _with_children(child, entries)
        else:
            children[name] = child if name in kept else None
    return _with_children(model, children)


def _with_children(module: nn.Module, children: dict[str, Any]) -> nn.Module:
    made = copy.copy(module)
    # `copy` shares these dictionaries: a hook of one part would run in the others, too.
    made.__dict__ |= {name: value.copy() for name, value in vars(module).items() if isinstance(value, dict)}
    made._modules = children  # pyright: ignore[reportPrivateUsage] - torch has no public name
    return made


def require_separable(model: nn.Module, name: str) -> None:
    """Raises `InputError` for weights that belong to no block or to several, and for state that no checkpoint has."""
    reason = ""
    if outside := [weight for weight, _ in model.named_parameters(recurse=False)]:
        reason = f"weights outside its children: {', '.join(outside)}; add a child"
    elif shared := list(shared_weights(model)):
        reason = f"shared weights: {', '.join(shared)}; stages can't share weights"
    elif len(model.state_dict()) > len(list(model.parameters())):
        reason = "persistent buffers; register them with persistent=False"
    if reason:
        raise InputError(f"{name} returned a model with {reason}")


def shared_weights(model: nn.Module) -> Iterator[str]:
    """The names of each weight that has several, such as `embedding.weight = head.weight`."""
    first: dict[nn.Parameter, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight in first:
            yield f"{first[weight]} = {name}"
        first.setdefault(weight, name)
