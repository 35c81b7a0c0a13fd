# pyright: standard
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from tests.kit.tables.tables import ROWS, csv
from torch import nn

from rolecall.kit.tables.batches import open_batches
from rolecall.spec.errors import InputError
from rolecall.workloads.embedding_ddp.build import Batch, Dataset, open_dataset, require_normalizable_shares
from rolecall.workloads.embedding_ddp.model import DenseLayers
from rolecall.workloads.embedding_ddp.params import Params

from .tables import opened, params


def labels_and_numbers(batches: list[Batch]) -> list[tuple[float, ...]]:
    return [(float(y), *n.tolist()) for batch in batches for y, n in zip(batch.labels, batch.numeric, strict=True)]


def epoch(dataset: Dataset, *, start: int = 0, rank: int = 0, world: int = 1) -> list[Batch]:
    return list(dataset.train_batches(0, start, rank, world))


def many(path: Path, rows: int = 103) -> Path:
    return csv(path, *(f"{i % 2},v{i % 7},{i}" for i in range(rows)))


@pytest.mark.parametrize("stream", [False, True])
def test_trainers_share_the_global_batches_of_one(tmp_path: Path, stream: bool) -> None:
    dataset = opened(tmp_path, params(many(tmp_path / "a.csv"), data={"stream": stream, "shuffle_buffer": 32}))
    alone = epoch(dataset)
    assert len(alone) == dataset.batches.steps_per_epoch == 26
    assert len(set(labels_and_numbers(alone))) == 103
    for whole, *parts in zip(alone, *(epoch(dataset, rank=rank, world=3) for rank in range(3)), strict=True):
        assert labels_and_numbers(parts) == labels_and_numbers([whole])
        assert all(part.global_rows == whole.rows for part in parts)


@pytest.mark.parametrize("stream", [False, True])
def test_an_epoch_resumes_at_any_step(tmp_path: Path, stream: bool) -> None:
    dataset = opened(tmp_path, params(many(tmp_path / "a.csv"), data={"stream": stream, "shuffle_buffer": 32}))
    assert labels_and_numbers(epoch(dataset, start=9)) == labels_and_numbers(epoch(dataset)[9:])


def test_validation_rows_are_not_trained_on(tmp_path: Path) -> None:
    dataset = opened(tmp_path, params(many(tmp_path / "a.csv", 1000), data={"validation": 0.2}))
    trained = set(labels_and_numbers(epoch(dataset)))
    held_out = set(labels_and_numbers(list(dataset.eval_batches("validation", 0, 1))))
    assert not trained & held_out
    assert len(trained) + len(held_out) == 1000
    assert 150 < len(held_out) < 250


def test_batches_can_be_changed_without_changing_the_cache(tmp_path: Path) -> None:
    """Rows without numbers are contiguous in the cache."""
    data = {"synthetic": {"rows": 40, "columns": 2, "ids": 5, "numbers": 0}, "validation": 0.5}
    dataset = open_dataset(Params.model_validate({"data": data, "batch_size": 8}), tmp_path)
    for batch in dataset.eval_batches("validation", 0, 1):
        batch.labels.fill_(7)
        assert batch.numeric.shape == (batch.rows, 0)
    assert not any(7 in batch.labels for batch in dataset.eval_batches("validation", 0, 1))


def test_unknown_and_missing_values_have_ids_of_their_own(tmp_path: Path) -> None:
    test = csv(tmp_path / "t.csv", "1,,", "1,new,4", "1,a,4")
    dataset = opened(tmp_path, params(csv(tmp_path / "a.csv", *ROWS), data={"test": str(test)}))
    (batch,) = dataset.eval_batches("test", 0, 1)
    assert batch.ids.tolist() == [0, 1, 2]
    assert batch.numeric[0].item() == 0.0


def test_none_pads_and_the_others_share_slots(tmp_path: Path) -> None:
    path = csv(tmp_path / "a.csv", "1,a|b,1", "0,c,1")
    data = {"categorical": [{"column": "c", "separator": "|", "max_values": 3}]}
    (apart,) = opened(tmp_path, params(path, data=data, pooling="none")).train_batches(0, 0, 0, 1)
    (pooled,) = opened(tmp_path, params(path, data=data, pooling="mean")).train_batches(0, 0, 0, 1)
    assert apart.width == 3
    assert sorted(apart.slots.tolist()) in ([0, 1, 3], [0, 3, 4])
    assert pooled.slots.tolist() in ([0, 0, 1], [0, 1, 1])
    assert torch.equal(apart.ids, pooled.ids)


@pytest.mark.parametrize(
    ("rows", "trainers", "layer", "refused"),
    [
        (9, 1, nn.BatchNorm1d(4), True),
        (10, 1, nn.BatchNorm1d(4), False),
        (11, 2, nn.BatchNorm1d(4), True),
        (12, 2, nn.BatchNorm1d(4), False),
        (9, 2, nn.SyncBatchNorm(4), False),
        (9, 2, nn.LayerNorm(4), False),
        (9, 2, nn.Sequential(nn.Unflatten(1, (2, 2)), nn.BatchNorm1d(2), nn.Flatten()), False),
    ],
)
def test_batch_norm_needs_two_rows_of_each_batch(
    tmp_path: Path, rows: int, trainers: int, layer: nn.Module, refused: bool
) -> None:
    batches = opened(tmp_path, params(many(tmp_path / "a.csv", rows))).batches
    shares = [len(share.rows) for rank in range(trainers) for share in batches.train(0, 0, rank, trainers)]
    assert (1 in shares) == (rows in (9, 11))
    dense = DenseLayers(nn.Sequential(nn.Linear(2, 4), layer, nn.Linear(4, 1)))
    with pytest.raises(InputError, match="change batch_size") if refused else nullcontext():
        require_normalizable_shares(dense, 2, batches, trainers)


def test_random_batches_count_as_their_smallest(tmp_path: Path) -> None:
    data = {"synthetic": {"rows": 16, "columns": 2, "ids": 5, "min_batch": 3}}
    dataset = open_dataset(Params.model_validate({"data": data, "batch_size": 8}), tmp_path)
    assert dataset.batches.least_rows == 3


def test_one_class_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="all 1 training rows are positive"):
        opened(tmp_path, params(csv(tmp_path / "a.csv", "1,a,1")))


def _open(given: Params, folder: Path) -> int:
    return open_batches(given.data, 4, given.seed, folder).table.folder.stat().st_ino


@pytest.mark.slow
def test_workers_that_come_together_build_one_cache(tmp_path: Path) -> None:
    given = params(many(tmp_path / "a.csv", 5000))
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        built = [pool.submit(_open, given, tmp_path) for _ in range(3)]
    assert len({future.result() for future in built}) == 1
    assert not list(tmp_path.glob("**/*.draft"))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    given = params(many(tmp_path / "a.csv"))
    assert opened(tmp_path, given).table.rows["train"] == 103
    many(tmp_path / "a.csv", 200)
    assert opened(tmp_path, given).table.rows["train"] == 200
