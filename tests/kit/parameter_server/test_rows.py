# pyright: standard
"""Steps on the rows of a gradient equal torch's own steps, and means of gradients equal dense means."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adagrad, Adam, Optimizer, SparseAdam

from rolecall.kit.native import library
from rolecall.kit.parameter_server.lookup import distinct_rows
from rolecall.kit.parameter_server.rows import RowGradient, mean_rows, step, step_on_mean, steps_on_rows

ROWS, DIM, F64 = 3000, 80, torch.float64  # Several blocks, the last one shorter.
CASES: list[tuple[type[Optimizer], dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),  # Torch's own step.
    (Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.2, "eps": 1e-7, "lr_decay": 0.3}),
    (Adagrad, {"lr": 0.1, "maximize": True}),  # Torch's own step.
    (SparseAdam, {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-7}),
    (SparseAdam, {"lr": 0.1, "maximize": True}),
]
pytestmark = pytest.mark.usefixtures("implementation")


class OwnAdagrad(Adagrad):
    """Can have a step of its own."""


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


@settings(deadline=None, max_examples=60)
@given(given_rows=st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=3), divisor=st.integers(1, 3))
def test_a_step_on_a_mean_is_bit_for_bit_a_step_after_it(given_rows: list[set[int]], divisor: int) -> None:
    random = torch.Generator().manual_seed(0)
    gradients = [
        RowGradient(torch.tensor(sorted(rows), dtype=torch.int64), torch.randn(len(rows), 5, generator=random))
        for rows in given_rows
    ]
    expected, found = nn.Parameter(torch.ones(7, 5)), nn.Parameter(torch.ones(7, 5))
    separate, at_once = Adagrad([expected], lr=0.1, lr_decay=0.3), Adagrad([found], lr=0.1, lr_decay=0.3)
    for _ in range(2):
        mean = mean_rows(gradients, divisor)
        expected.grad = torch.sparse_coo_tensor(mean.rows[None], mean.values, expected.shape, is_coalesced=True)
        step(separate)
        if not step_on_mean(at_once, found, gradients, divisor):
            assert not library.is_available()
            return
    assert torch.equal(found, expected)
    torch.testing.assert_close(at_once.state_dict(), separate.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "arguments", "rows", "offsets", "dtype"),
    [
        (SGD, {"lr": 0.1}, [0, 1], None, torch.float32),
        (Adagrad, {"weight_decay": 0.1}, [0, 1], None, torch.float32),
        (Adagrad, {"maximize": True}, [0, 1], None, torch.float32),
        (OwnAdagrad, {}, [0, 1], None, torch.float32),
        (Adagrad, {}, [1, 0], None, torch.float32),
        (Adagrad, {}, [1, 1], None, torch.float32),
        (Adagrad, {}, [0, 1], [0, 1], torch.float32),
        (Adagrad, {}, [0, 1], None, torch.bfloat16),
    ],
)
def test_a_step_on_a_mean_that_has_no_loop_changes_nothing(
    kind: type[Optimizer], arguments: dict[str, Any], rows: list[int], offsets: list[int] | None, dtype: torch.dtype
) -> None:
    weight = nn.Parameter(torch.ones(3, 2, dtype=dtype))
    optimizer = kind([weight], **arguments)
    bags = None if offsets is None else torch.tensor(offsets)
    before = copy.deepcopy(optimizer.state_dict())
    gradient = RowGradient(torch.tensor(rows), torch.ones(2, 2, dtype=dtype), bags)
    assert not step_on_mean(optimizer, weight, [gradient], 1)
    assert weight.eq(1).all()
    torch.testing.assert_close(optimizer.state_dict(), before, rtol=0, atol=0)


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
    ascending=st.booleans(),
    pooled=st.booleans(),
    divisor=st.integers(1, 3),
    dtype=st.sampled_from([F64, torch.float32]),
)
def test_means_have_each_row_once(
    given_rows: list[list[int]], ascending: bool, pooled: bool, divisor: int, dtype: torch.dtype
) -> None:
    given_rows = [sorted(set(rows)) if ascending else rows for rows in given_rows]
    expected, gradients = torch.zeros(7, 2, dtype=dtype), list[RowGradient]()
    for number, rows in enumerate(given_rows):
        at = torch.tensor(rows, dtype=torch.int64)
        # Two bags: the first row, and the rest.
        offsets = torch.tensor([0, min(1, len(rows))]) if pooled else None
        bags = (torch.arange(len(rows)) > 0).long() if pooled else torch.arange(len(rows))
        values = torch.randn(
            2 if pooled else len(rows), 2, dtype=dtype, generator=torch.Generator().manual_seed(number)
        )
        expected.index_add_(0, at, values[bags], alpha=1 / divisor)
        gradients.append(RowGradient(at, values, offsets))
    total = mean_rows(gradients, divisor)
    assert total.rows.tolist() == sorted({row for rows in given_rows for row in rows})
    found = torch.zeros_like(expected).index_copy_(0, total.rows, total.values)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 if dtype == F64 else 1e-6)


def test_rows_that_do_not_exist_are_refused() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = Adagrad([weight], lr=0.5)
    for row in (3, -1):
        weight.grad = torch.sparse_coo_tensor(
            torch.tensor([[row]]), torch.ones(1, 2), (3, 2), is_coalesced=True, check_invariants=False
        )
        with pytest.raises(IndexError):
            step(optimizer)


def test_values_must_fit_their_rows() -> None:
    rows = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="1 values for 2 rows"):
        mean_rows([RowGradient(rows, torch.ones(1, 2)), RowGradient(rows, torch.ones(2, 2))], 1)


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.integers(0, 20), max_size=20), count=st.integers(1, 4))
def test_each_id_finds_its_row(ids: list[int], count: int) -> None:
    wanted = distinct_rows(torch.tensor(ids, dtype=torch.int64), count)
    found = [int(row) * count + shard for shard, rows in enumerate(wanted.rows) for row in rows]
    assert len(wanted.rows) == count
    assert sorted(found) == sorted(set(ids))
    assert [found[at] for at in wanted.positions.tolist()] == ids
