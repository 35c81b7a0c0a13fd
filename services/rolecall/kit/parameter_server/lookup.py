# pyright: standard
"""Look-ups of a trainer: each distinct row once from its shard, and the gradient of these rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import Tensor
from torch.autograd.function import FunctionCtx

from rolecall.kit.native import library, row_loops
from rolecall.kit.parameter_server.rows import bags_of, sort_distinct, sum_groups
from rolecall.runtime.context import span
from rolecall.runtime.measuring import measurements
from rolecall.spec import metric


class Reply(Protocol):
    """Vectors that a server sends."""

    def wait(self) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The rows of ids [...] in the shards of a table, each once."""

    rows: Sequence[Tensor]
    """For each shard, its local row numbers, ascending."""
    positions: Tensor
    """[...] The index in the concatenated rows for each id."""
    order: Tensor
    """[n] Indices of the flattened ids, grouped by row; the groups have the order of the rows."""
    starts: Tensor
    """[d] The index in `order` at which each row's group begins."""


def distinct_rows(ids: Tensor, count: int) -> DistinctRows:
    """The rows of ids [...] in a table of `count` shards."""
    flat = ids.flatten()
    rows = int(flat.max()) // count + 1 if len(flat) else 1  # of each shard, at least
    numbers = flat if count == 1 else flat % count * rows + flat // count
    distinct, order, starts = sort_distinct(numbers)
    positions = torch.empty_like(order)
    positions[order] = bags_of(order, starts)
    sizes = torch.bincount(distinct // rows, minlength=count).tolist()
    return DistinctRows((distinct % rows).split(sizes), positions.view(ids.shape), order, starts)


@dataclass(frozen=True, slots=True)
class RequestedRows:
    """Rows that the shards are sending."""

    wanted: DistinctRows
    replies: Sequence[Reply]
    """A reply of each shard."""

    def expand(self) -> Tensor:
        """Wait for the rows. The vectors [..., dim] of the ids, on the device of the shards' replies."""
        with span("look-up", "communication"):
            parts = [reply.wait() for reply in self.replies]
        return _Expanded.apply(self.wanted, *parts)


def request_rows(wanted: DistinctRows, request: Callable[[int, Tensor], Reply]) -> RequestedRows:
    """Request distinct rows from their shards.

    `request(shard, rows)` returns the vectors of local row numbers. It is also called for a shard without any, so that
    its optimizer counts the step.
    """
    measurements.add(metric.LOOK_UP_IDS, wanted.positions.numel())
    measurements.add(metric.LOOK_UP_SENT, len(wanted.starts))
    return RequestedRows(wanted, [request(shard, rows) for shard, rows in enumerate(wanted.rows)])


class _Expanded(torch.autograd.Function):
    """Repeats the vectors of all shards. The backward pass uses the order of the rows, with which the look-up was
    prepared."""

    @staticmethod
    def forward(ctx: FunctionCtx, wanted: DistinctRows, *parts: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.wanted, ctx.sizes = wanted, list(map(len, parts))  # pyright: ignore[reportAttributeAccessIssue] - torch's way
        if library.is_native(*parts) and library.are_integers(wanted.positions):
            return row_loops.gather(parts, wanted.positions)
        vectors = parts[0] if len(parts) == 1 else torch.cat(parts)
        return F.embedding(wanted.positions.to(vectors.device), vectors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        wanted: DistinctRows = ctx.wanted
        order, starts = wanted.order.to(gradient.device), wanted.starts.to(gradient.device)
        sums = sum_groups(gradient.reshape(-1, gradient.shape[-1]), order, starts)
        return None, *sums.split(ctx.sizes)


def hand_over(values: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
    """The same values, as if computed from weights: the backward pass calls `receive` with their gradient."""
    anchor = torch.empty(0, requires_grad=True)  # Makes autograd record the call.
    return _HandedOver.apply(anchor, values, receive)


class _HandedOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, anchor: Tensor, values: Tensor, receive: Callable[[Tensor], None]) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.receive = receive  # pyright: ignore[reportAttributeAccessIssue] - torch's way
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.receive(gradient)
        return None, None, None
