# pyright: standard
"""The parameters' optimizers are torch's, and gradients are clipped as torch clips them."""

import math
import mmap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, SparseAdam

from rolecall.kit import optimizers, params


@pytest.mark.parametrize(
    ("chosen", "kind", "expected"),
    [
        (params.Sgd(name="sgd", lr=0.5, momentum=0.9), SGD, {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.0}),
        (params.Adam(name="adam", eps=1e-6), Adam, {"lr": 0.001, "betas": (0.9, 0.999), "eps": 1e-6, "fused": True}),
        (params.AdamW(name="adamw", lr=0.1), AdamW, {"lr": 0.1, "weight_decay": 0.01, "fused": True}),
    ],
)
def test_dense_optimizers(
    chosen: params.Sgd | params.Adam | params.AdamW, kind: type[Optimizer], expected: dict[str, object]
) -> None:
    built = optimizers.dense_optimizer(chosen).build([nn.Parameter(torch.ones(2))])
    assert type(built) is kind
    assert {name: built.param_groups[0][name] for name in expected} == expected


@pytest.mark.parametrize("chosen", [params.Adam(name="adam", lr=0.5), params.AdamW(name="adamw", lr=0.5)])
def test_a_distributed_optimizer_gets_no_argument_that_torch_2_11_refuses(chosen: params.Adam | params.AdamW) -> None:
    choice = optimizers.dense_optimizer(chosen)
    assert choice.arguments == {**choice.remote_arguments, "fused": True}
    assert "fused" not in choice.remote_arguments


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        (params.SparseSgd(name="sgd", lr=0.5), SGD),
        (params.SparseAdagrad(name="adagrad", lr=0.5, initial_accumulator=1.0), Adagrad),
        (params.SparseAdam(name="sparse-adam", lr=0.5), SparseAdam),
    ],
)
def test_sparse_optimizers_change_the_used_rows_only(
    chosen: params.SparseSgd | params.SparseAdagrad | params.SparseAdam, kind: type[Optimizer]
) -> None:
    table = nn.Embedding(3, 2, sparse=True)
    before = table.weight.detach().clone()
    built = optimizers.sparse_optimizer(chosen).build(table.parameters())
    assert type(built) is kind
    table(torch.tensor([1])).sum().backward()
    built.step()
    assert (table.weight.detach() != before).any(1).tolist() == [False, True, False]


def test_rates_are_scaled_from_their_first_values() -> None:
    optimizer = SGD([{"params": [nn.Parameter(torch.ones(1))], "lr": 0.5}, {"params": [], "lr": 0.1}])
    for factor in (0.5, 0.1, 1.0):
        optimizers.scale_rates(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [0.5 * factor, 0.1 * factor]


def test_norm_and_scale_clip_as_torch_does() -> None:
    torch.manual_seed(0)
    ours, theirs, unused = (nn.Parameter(torch.zeros(3, 2)) for _ in range(3))
    gradient = torch.randn(3, 2)
    optimizers.set_gradients([ours, unused], {ours: gradient.clone()})
    theirs.grad = gradient.clone()
    assert unused.grad is None
    norm = nn.utils.clip_grad_norm_([theirs], 0.5)
    assert optimizers.squared_norm([ours, unused]) == pytest.approx(float(norm) ** 2, rel=1e-6)
    optimizers.scale_gradients([ours, unused], 0.5 / (float(norm) + 1e-6))
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_scale_of_one_changes_no_bit_and_no_gradients_have_norm_zero() -> None:
    weight = nn.Parameter(torch.zeros(2))
    assert optimizers.squared_norm([weight]) == 0.0
    weight.grad = torch.tensor([float("inf"), 1e-45])
    before = weight.grad.clone()
    optimizers.scale_gradients([weight], 1.0)
    assert torch.equal(weight.grad, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("first", [0.0, 0.5])
def test_the_state_of_adagrad_is_torchs(dtype: torch.dtype, first: float) -> None:
    arguments: dict[str, Any] = {"lr": 0.1, "initial_accumulator_value": first}
    weights = [nn.Parameter(torch.ones(3, 4, dtype=dtype)) for _ in range(2)]
    found, expected = (
        optimizers.OptimizerChoice(Adagrad, arguments).build(weights[:1]),
        Adagrad(weights[1:], **arguments),
    )
    for _ in range(2):
        for weight, optimizer in zip(weights, (found, expected), strict=True):
            torch.testing.assert_close(
                optimizer.state[weight]["sum"], expected.state[weights[1]]["sum"], rtol=0, atol=0
            )
            weight.grad = torch.full_like(weight, 0.5)
        found.step()
        expected.step()
        assert torch.equal(*weights)


def test_zeros_that_nobody_has_used_take_no_memory() -> None:
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    weight = nn.Parameter(torch.empty(1 << 14, 1 << 12))  # 256 MiB, which nothing touches.
    optimizers.OptimizerChoice(Adagrad, {}).build([nn.Parameter(torch.ones(1))])  # Torch loads modules of its own.
    before = resident_bytes()
    built = optimizers.OptimizerChoice(Adagrad, {}).build([weight])
    assert resident_bytes() - before < weight.nbytes / 8
    squares = built.state[weight]["sum"]
    squares[0] += 1
    assert squares[:2].sum() == 1 << 12


def test_zeros_of_no_rows() -> None:
    assert optimizers.unused_zeros_like(torch.ones(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_single_bad_value_is_found(bad: float, dtype: torch.dtype) -> None:
    mask = nn.Parameter(torch.tensor([0.0, -math.inf]), requires_grad=False)
    weight = nn.Parameter(torch.full((3, 4), torch.finfo(dtype).max, dtype=dtype))
    weights = [mask, nn.Parameter(torch.ones(0)), weight]
    assert optimizers.are_finite(weights)
    weight.data[1, 2] = bad
    assert not optimizers.are_finite(weights)
