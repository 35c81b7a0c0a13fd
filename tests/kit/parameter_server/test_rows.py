"""Steps on the rows of a gradient equal torch's own steps, and sums of gradients equal dense sums."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

from rolecall.kit.parameter_server.lookup import distinct_rows
from rolecall.kit.parameter_server.rows import RowGradient, step, steps_on_rows, sum_rows

ROWS, DIM, F64 = 3000, 80, torch.float64  # Several blocks, the last one shorter.
CASES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),  # Torch's own step.
    (Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-7, "lr_decay": 0.3}),
    (SparseAdam, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-7}),
]


@pytest.mark.parametrize(("kind", "arguments"), CASES)
def test_a_step_on_rows_is_torchs(kind: type[Optimizer], arguments: dict[str, Any]) -> None:
    torch.manual_seed(0)
    expected = nn.Parameter(torch.randn(ROWS, DIM, dtype=F64))
    found = nn.Parameter(expected.detach().clone())
    torchs, own = kind([expected], **arguments), kind([found], **arguments)
    for used in (1700, 0, 1, 900):
        rows = torch.randperm(ROWS)[:used].sort().values
        values = torch.randn(used, DIM, dtype=F64)
        for weight in (expected, found):
            weight.grad = torch.sparse_coo_tensor(rows[None], values, weight.shape, is_coalesced=True)
        torchs.step()
        step(own)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(own.state_dict(), torchs.state_dict(), rtol=0, atol=1e-12)


def test_dense_gradients_take_torchs_step() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.ones(2, 2)
    step(Adagrad([weight], lr=0.5))
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.5))


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        (SGD, {"lr": 0.1}, True),
        (SGD, {"lr": 0.1, "momentum": 0.9}, False),
        (SGD, {"lr": 0.1, "weight_decay": 0.1}, False),
        (Adagrad, {}, True),
        (Adagrad, {"weight_decay": 0.1}, False),
        (SparseAdam, {}, True),
        (Adam, {}, False),
    ],
)
def test_which_optimizers_step_on_rows(kind: type[Optimizer], arguments: dict[str, Any], expected: bool) -> None:
    assert steps_on_rows(kind([nn.Parameter(torch.ones(1))], **arguments)) == expected


@settings(deadline=None, max_examples=60)
@given(
    given_rows=st.lists(st.lists(st.integers(0, 6), max_size=6), min_size=1, max_size=3),
    pooled=st.booleans(),
)
def test_sums_have_each_row_once(given_rows: list[list[int]], pooled: bool) -> None:
    expected, gradients = torch.zeros(7, 2, dtype=F64), list[RowGradient]()
    for number, rows in enumerate(given_rows):
        at = torch.tensor(rows, dtype=torch.int64)
        # Two bags: the first row, and the rest.
        offsets = torch.tensor([0, min(1, len(rows))]) if pooled else None
        bags = (torch.arange(len(rows)) > 0).long() if pooled else torch.arange(len(rows))
        values = torch.randn(2 if pooled else len(rows), 2, dtype=F64, generator=torch.Generator().manual_seed(number))
        expected.index_add_(0, at, values[bags])
        gradients.append(RowGradient(at, values, offsets))
    total = sum_rows(gradients)
    assert total.rows.tolist() == sorted({row for rows in given_rows for row in rows})
    found = torch.zeros_like(expected).index_copy_(0, total.rows, total.values)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.integers(0, 20), max_size=20), count=st.integers(1, 4))
def test_each_id_finds_its_row(ids: list[int], count: int) -> None:
    wanted = distinct_rows(torch.tensor(ids, dtype=torch.int64), count)
    found = [int(row) * count + shard for shard, rows in enumerate(wanted.rows) for row in rows]
    assert len(wanted.rows) == count
    assert sorted(found) == sorted(set(ids))
    assert [found[at] for at in wanted.positions.tolist()] == ids
