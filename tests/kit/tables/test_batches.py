"""Global batches of a table: shares, resumption, the hold-out and the shuffle buffer.

`embedding_ddp` has the tests of its tensors.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rolecall.kit.tables.batches import TableBatches, open_batches, rebatch, shuffle

from .tables import csv, table

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


def opened(folder: Path, *, stream: bool) -> TableBatches:
    path = csv(folder / "a.csv", *(f"{i % 2},v{i % 7},{i}" for i in range(50)))
    return open_batches(table(path, validation=0.2, stream=stream, shuffle_buffer=8), 8, 0, folder / "cache")


@pytest.mark.parametrize("stream", [False, True])
def test_shares_make_the_global_batches_from_any_step(tmp_path: Path, stream: bool) -> None:
    batches = opened(tmp_path, stream=stream)
    whole = list(batches.train(1, 0, 0, 1))
    assert len(whole) == batches.steps_per_epoch
    shares = [list(batches.train(1, 2, rank, 3)) for rank in range(3)]
    for expected, *parts in zip(whole[2:], *shares, strict=True):
        assert np.array_equal(np.concatenate([part.rows for part in parts]), expected.rows)
        assert {part.global_rows for part in parts} == {len(expected.rows)}


def test_held_out_rows_are_in_order_and_not_trained_on(tmp_path: Path) -> None:
    batches = opened(tmp_path, stream=False)
    held_out = np.concatenate([batch.rows for batch in batches.held_out("validation", 0, 1)])["numbers"][:, 0]
    trained = np.concatenate([batch.rows for batch in batches.train(0, 0, 0, 1)])["numbers"][:, 0]
    assert len({*held_out, *trained}) == len(held_out) + len(trained) == 50
    assert sorted(held_out) == list(held_out)
