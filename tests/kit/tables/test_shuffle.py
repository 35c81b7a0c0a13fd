"""The shuffle buffer returns every record once, in an order of the seed and the epoch."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rolecall.kit.tables.shuffle import rebatch, shuffle

KIND = np.dtype([("number", "<i8")])


def chunks(sizes: list[int]) -> Iterator[NDArray[np.void]]:
    start = 0
    for size in sizes:
        yield np.array([(number,) for number in range(start, start + size)], KIND)
        start += size


def numbers(records: Iterator[NDArray[np.void]]) -> list[int]:
    return [int(number) for chunk in records for number in chunk["number"]]


SIZES = st.lists(st.integers(0, 9), max_size=6)


@given(sizes=SIZES, buffer=st.integers(1, 12), seed=st.integers(0, 3))
def test_every_record_comes_once(sizes: list[int], buffer: int, seed: int) -> None:
    assert sorted(numbers(shuffle(chunks(sizes), buffer, seed, 0))) == list(range(sum(sizes)))


def test_seed_and_epoch_decide_the_order() -> None:
    orders = [numbers(shuffle(chunks([50, 50]), 20, seed, epoch)) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert orders[0] == orders[1] != list(range(100))
    assert len({tuple(order) for order in orders}) == 3


@given(sizes=SIZES, batch=st.integers(1, 12))
def test_batches_are_full_but_the_last(sizes: list[int], batch: int) -> None:
    batches = list(rebatch(chunks(sizes), batch))
    assert numbers(iter(batches)) == list(range(sum(sizes)))
    assert [len(one) for one in batches[:-1]] == [batch] * (len(batches) - 1)
    assert all(0 < len(one) <= batch for one in batches)


@pytest.mark.parametrize("sizes", [[], [0]])
def test_without_records_there_is_no_batch(sizes: list[int]) -> None:
    assert list(rebatch(shuffle(chunks(sizes), 4, 0, 0), 4)) == []
