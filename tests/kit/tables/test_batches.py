"""Global batches of a table: shares, resumption and the hold-out. `embedding_ddp` has the tests of its tensors."""

from pathlib import Path

import numpy as np
import pytest

from rolecall.kit.tables.batches import TableBatches, open_batches

from .tables import csv, table


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
