# pyright: standard
"""Gradients of single rows, on the servers: the mean over the trainers, and optimizer steps on these rows alone."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from rolecall.kit.native import library, row_loops
from rolecall.kit.optimizers import unused_zeros_like

_BLOCK_BYTES = 1 << 17
"""The size of a block of rows, several of which fit into a core's L2 cache."""


class RowGradient(NamedTuple):
    """The gradient of some rows of a weight; a tuple, in which `call` finds the tensors."""

    rows: Tensor
    """[n] int64 row numbers."""
    values: Tensor
    """[n, dim] their gradients; with `offsets` [b, dim], the gradient of each row in a bag."""
    offsets: Tensor | None = None
    """[b] The index in `rows` at which each bag begins, as of torch's `EmbeddingBag`."""

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "RowGradient":
        """The same gradient on a device, with values of this data type."""
        offsets = None if self.offsets is None else self.offsets.to(device)
        return RowGradient(self.rows.to(device), self.values.to(device, dtype or self.values.dtype), offsets)


def mean_rows(gradients: Sequence[RowGradient], divisor: int) -> RowGradient:
    """The sum of gradients of the same weight over `divisor`, with each row once, in ascending order.

    Raises `ValueError` if there is not one value for each row or bag.
    """
    for one in gradients:
        expected = len(one.rows if one.offsets is None else one.offsets)
        if len(one.values) != expected:
            raise ValueError(f"a gradient has {len(one.values)} values for {expected} rows or bags")
    rows, values = [one.rows for one in gradients], [one.values for one in gradients]
    simple = _are_simple(gradients)
    if simple and library.is_native(*values) and library.are_integers(*rows):
        return RowGradient(*row_loops.mean_rows(rows, values, divisor))
    if simple and len(gradients) == 1:
        return RowGradient(rows[0], values[0] / divisor)
    sources, begin = list[Tensor](), 0
    for one in gradients:  # Each row's index in all values.
        if one.offsets is None:
            bags = torch.arange(len(one.rows), device=one.rows.device)
        else:
            bags = bags_of(one.rows, one.offsets)
        sources.append(bags + begin)
        begin += len(one.values)
    distinct, order, starts = sort_distinct(torch.cat(rows))
    return RowGradient(distinct, sum_groups(torch.cat(values), torch.cat(sources)[order], starts).div_(divisor))


def _are_simple(gradients: Sequence[RowGradient]) -> bool:
    """True if each gradient has one value for each of its rows, which ascend."""
    return all(one.offsets is None and bool((one.rows[1:] > one.rows[:-1]).all()) for one in gradients)


def bag_sizes(ids: Tensor, offsets: Tensor) -> Tensor:
    """The number of ids [b] of each bag."""
    return torch.diff(offsets, append=offsets.new_tensor([len(ids)]))


def bags_of(ids: Tensor, offsets: Tensor) -> Tensor:
    """The bag [n] of each id."""
    return torch.repeat_interleave(torch.arange(len(offsets), device=offsets.device), bag_sizes(ids, offsets))


def sort_distinct(numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct numbers [d] of numbers [n], ascending; the order [n] that sorts the numbers; and the index [d] in
    this order at which each distinct number begins."""
    ascending, order = numbers.sort(stable=True)
    first = torch.ones_like(ascending, dtype=torch.bool)
    torch.ne(ascending[1:], ascending[:-1], out=first[1:])
    starts = first.nonzero().squeeze(1)
    return ascending[starts], order, starts


def sum_groups(values: Tensor, order: Tensor, starts: Tensor) -> Tensor:
    """The sums [d, dim] of the values [m, dim] of each group; group `i` is `order[starts[i]:starts[i + 1]]`."""
    if len(starts) == 0:
        return values.new_zeros(0, *values.shape[1:])
    # Several times faster than index_add_ and the backward pass of an embedding.
    return F.embedding_bag(order, values, starts, mode="sum")


def steps_on_rows(optimizer: Optimizer) -> bool:
    """True if a step of the optimizer changes nothing in rows whose gradient is 0, so that it accepts sparse
    gradients."""
    match optimizer:
        case SGD():
            on_all_rows = ("momentum", "weight_decay")
        case Adagrad():
            on_all_rows = ("weight_decay",)
        case _:
            return isinstance(optimizer, SparseAdam)
    return all(group[name] == 0 for group in optimizer.param_groups for name in on_all_rows)


@torch.no_grad()
def step(optimizer: Optimizer) -> None:
    """As `optimizer.step()`, but several times faster for Adagrad and SparseAdam with coalesced sparse gradients.

    Torch's own steps create tensors of all rows of the gradient for each operation. These go through the rows in blocks
    that stay in the cache. The optimizer keeps its state, so that checkpoints are the same.
    """
    update = _UPDATES.get(type(optimizer))
    weights = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
    maximizes = any(group.get("maximize") for group in optimizer.param_groups)
    if update is None or maximizes or not all(one.grad.is_sparse for one in weights):
        optimizer.step()
        return
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None:
                update(weight, optimizer.state[weight], group)


@torch.no_grad()
def step_on_mean(optimizer: Optimizer, weight: Tensor, gradients: Sequence[RowGradient], divisor: int) -> bool:
    """A step on rows of `weight` with the sum of gradients over `divisor`, as `step` with the result of `mean_rows`.

    It takes one pass, without memory for that result. Returns False, and changes nothing, if no loop can do it.
    """
    group = optimizer.param_groups[0]
    # Subclasses can have a step of their own.
    if type(optimizer) is not Adagrad or not steps_on_rows(optimizer) or group.get("maximize") or not gradients:
        return False
    state, rows, values = optimizer.state[weight], [one.rows for one in gradients], [one.values for one in gradients]
    if not _has_adagrad_loop(weight, state, rows, values) or not _are_simple(gradients):
        return False
    row_loops.step_adagrad(rows, values, divisor, weight, state["sum"], _next_rate(state, group), group["eps"])
    return True


def _step_adagrad(weight: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Duchi, Hazan and Singer, 2011; as `torch.optim.Adagrad`."""
    assert weight.grad is not None
    (numbers,), gradients = weight.grad._indices(), weight.grad._values()
    rate = _next_rate(state, group)
    if _has_adagrad_loop(weight, state, [numbers], [gradients]):
        row_loops.step_adagrad([numbers], [gradients], 1, weight, state["sum"], rate, group["eps"])
        return
    for gradient, work, rows, squares in _blocks(weight, state["sum"]):
        squares.addcmul_(gradient, gradient)
        rows.addcdiv_(gradient, torch.sqrt(squares, out=work).add_(group["eps"]), value=-rate)


def _has_adagrad_loop(
    weight: Tensor, state: dict[str, Any], rows: Sequence[Tensor], gradients: Sequence[Tensor]
) -> bool:
    is_native = library.is_native(weight, state["sum"], *gradients) and library.are_integers(*rows)
    return weight.dim() == 2 and is_native


def _next_rate(state: dict[str, Any], group: dict[str, Any]) -> float:
    """Count a step of Adagrad; its learning rate."""
    state["step"] += 1
    return group["lr"] / (1 + (float(state["step"]) - 1) * group["lr_decay"])


def _step_sparse_adam(weight: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Kingma and Ba, 2015, with moments only of the rows that a batch uses; as `torch.optim.SparseAdam`."""
    if not state:
        state |= {"step": 0, "exp_avg": unused_zeros_like(weight), "exp_avg_sq": unused_zeros_like(weight)}
    state["step"] += 1
    beta1, beta2 = group["betas"]
    corrections = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
    rate = group["lr"] * corrections[1] ** 0.5 / corrections[0]
    for gradient, work, rows, means, squares in _blocks(weight, state["exp_avg"], state["exp_avg_sq"]):
        means.lerp_(gradient, 1 - beta1)
        squares.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rows.addcdiv_(means, torch.sqrt(squares, out=work).add_(group["eps"]), value=-rate)


_UPDATES: dict[type[Optimizer], Callable[[Tensor, dict[str, Any], dict[str, Any]], None]] = {
    Adagrad: _step_adagrad,
    SparseAdam: _step_sparse_adam,
}


def _blocks(weight: Tensor, *state: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """For each block of the gradient's rows: its gradient, working memory of the same size, and copies of the rows of
    `weight` and `state`, which are written back after the block."""
    assert weight.grad is not None
    sparse = weight.grad
    (all_rows,), values, tensors = sparse._indices(), sparse._values(), (weight, *state)
    size = len(all_rows)
    if weight.device.type == "cpu":
        size = max(1, _BLOCK_BYTES // max(1, weight[:1].nbytes))
    copies = [weight.new_empty(min(size, len(all_rows)), *weight.shape[1:]) for _ in range(len(tensors) + 1)]
    for numbers, gradient in zip(all_rows.split(size or 1), values.split(size or 1), strict=True):
        work, *blocks = (copy[: len(numbers)] for copy in copies)
        for tensor, block in zip(tensors, blocks, strict=True):
            torch.index_select(tensor, 0, numbers, out=block)
        yield gradient, work, *blocks
        for tensor, block in zip(tensors, blocks, strict=True):
            tensor.index_copy_(0, numbers, block)
