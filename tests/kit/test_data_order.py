import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.kit.data_order import DataOrder, permutation

SEEDS = st.integers(0, 2**63 - 1)


@given(rows=st.integers(1, 3000), seed=SEEDS, epoch=st.integers(0, 100))
def test_an_epoch_is_a_permutation(rows: int, seed: int, epoch: int) -> None:
    assert sorted(permutation(np.arange(rows), rows, seed, epoch)) == list(range(rows))


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 500), batch=st.integers(1, 64), world=st.integers(1, 9), seed=SEEDS)
def test_any_number_of_trainers_shares_the_same_global_batches(rows: int, batch: int, world: int, seed: int) -> None:
    order = DataOrder(rows, batch, seed)
    for step in range(order.steps_per_epoch):
        shares = [order.share(3, step, rank, world) for rank in range(world)]
        assert np.array_equal(np.concatenate(shares), order.share(3, step, 0, 1))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert sum(map(len, shares)) == order.batch_rows(step)


@pytest.mark.slow
@given(rows=st.integers(1, 500), batch=st.integers(1, 64))
def test_every_row_is_seen_once_with_the_short_batch(rows: int, batch: int) -> None:
    order = DataOrder(rows, batch, seed=1)
    seen = np.concatenate([order.share(0, step, 0, 1) for step in range(order.steps_per_epoch)])
    assert sorted(seen) == list(range(rows))


def test_epochs_and_seeds_differ() -> None:
    order = [permutation(np.arange(1000), 1000, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert not np.array_equal(order[0], order[1])
    assert not np.array_equal(order[0], order[2])


def test_the_order_of_a_seed_never_changes() -> None:
    assert permutation(np.arange(10), 10, 0, 0).tolist() == GOLDEN


@pytest.mark.parametrize("distance", [1, 2, 7])
def test_neighbors_are_not_related(distance: int) -> None:
    order = permutation(np.arange(20_000), 20_000, 0, 0)
    assert abs(np.corrcoef(order[:-distance], order[distance:])[0, 1]) < 0.03


def test_a_huge_data_set_needs_no_memory() -> None:
    found = permutation(np.arange(1000), 10**12, 0, 0)
    assert len(set(found.tolist())) == 1000
    assert found.max() < 10**12


GOLDEN = [3, 1, 0, 7, 9, 5, 8, 2, 4, 6]
