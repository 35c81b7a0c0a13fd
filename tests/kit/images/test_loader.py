# pyright: standard
"""The same seed gives the same batches, however many processes make them and wherever they begin."""

import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.pictures import write_folder, write_idx
from torchvision.transforms import v2

from rolecall.kit.data_order import DataOrder
from rolecall.kit.images.loader import Batch, TrainBatches, augmentation, eval_batches, open_splits
from rolecall.kit.images.params import Images
from rolecall.spec.errors import InputError

AUGMENT = ["shift", "flip"]
POSITIONS = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (0, 1)]
# In a process of its own: pytest's may have threads, and forking with threads is deprecated in Python 3.12.
_WITH_LOADER_PROCESSES = """
import sys
from pathlib import Path
from tests.kit.images.test_loader import POSITIONS, assert_equal, first_error, images, train_batches

folder = Path(sys.argv[1])
alone, *others = (train_batches(images(folder), processes=count) for count in (0, 1, 2))
for position in POSITIONS:
    for other in others:
        assert_equal(other.at(*position), alone.at(*position))
print(first_error(folder, processes=1))
"""
_DELETED = """
import gc, sys, time
from pathlib import Path
import psutil
from tests.kit.images.test_loader import images, train_batches

gc.disable()
batches = train_batches(images(Path(sys.argv[1])), processes=2)
batches.at(0, 0)
loaders = psutil.Process().children()
begin = time.monotonic()
del batches
print(len(loaders), sum(one.is_running() for one in loaders), time.monotonic() - begin)
"""


def images(folder: Path, count: int = 30, **changes: Any) -> Images:
    given = {"train": write_idx(folder, count, 20), "size": 16, "validation": 0.2, "augment": AUGMENT, **changes}
    return Images.model_validate(given)


def train_batches(data: Images, *, processes: int = 0, rank: int = 0, replicas: int = 1) -> TrainBatches:
    train = open_splits(data, seed=1)["train"]
    order = DataOrder(len(train), batch_size=6, seed=1)
    transform = v2.Compose([*augmentation(data), v2.Resize(data.size), v2.CenterCrop(data.size)])
    return TrainBatches(train, transform, order, rank=rank, replicas=replicas, processes=processes)


def assert_equal(one: Batch, other: Batch) -> None:
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_batches_are_bytes_and_labels(tmp_path: Path) -> None:
    pixels, labels = train_batches(images(tmp_path)).at(0, 0)
    assert (pixels.dtype, pixels.shape) == (torch.uint8, (6, 3, 16, 16))
    assert (labels.dtype, labels.shape) == (torch.int64, (6,))


def test_any_position_can_be_asked_for(tmp_path: Path) -> None:
    data = images(tmp_path)
    running, steps = train_batches(data), 3
    expected = {(epoch, step): running.at(epoch, step) for epoch in range(2) for step in range(steps)}
    for position in [(1, 1), (1, 2), (0, 2), (1, 0)]:
        assert_equal(train_batches(data).at(*position), expected[position])
    jumping = train_batches(data)
    for position in [(0, 1), (0, 2), (1, 0), (0, 1)]:
        assert_equal(jumping.at(*position), expected[position])


def test_each_epoch_draws_other_values(tmp_path: Path) -> None:
    data = images(tmp_path, 6, validation=0.0)
    batches = train_batches(data)
    first, second = (batches.at(epoch, 0) for epoch in range(2))
    assert sorted(first[1].tolist()) == sorted(second[1].tolist())
    assert not torch.equal(first[0].float().mean((1, 2, 3)).sort()[0], second[0].float().mean((1, 2, 3)).sort()[0])


def test_drawing_leaves_the_processs_own_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train_batches(images(tmp_path)).at(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_replicas_share_each_global_batch(tmp_path: Path) -> None:
    data = images(tmp_path)
    whole = train_batches(data).at(1, 2)
    parts = [train_batches(data, rank=rank, replicas=2).at(1, 2) for rank in range(2)]
    pixels, labels = map(torch.cat, zip(*parts, strict=True))
    assert_equal((pixels, labels), whole)


def first_error(folder: Path, processes: int) -> str:
    """The error message for a file that is not an image."""
    train = write_folder(folder / "train", 3, 24)
    (train / "rows" / "00002.png").write_bytes(b"no image")
    split = open_splits(images(folder, train=str(train), validation=0.0), seed=1)["train"]
    with pytest.raises(InputError) as error:
        list(eval_batches(split, slice(0, 3), v2.CenterCrop(16), size=3, processes=processes))
    return str(error.value)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    assert first_error(tmp_path, processes=0).startswith(f"{tmp_path}/train/rows/00002.png can't be read as an image")


@pytest.mark.slow
def test_loader_processes_change_neither_batches_nor_errors(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _WITH_LOADER_PROCESSES, str(tmp_path)]
    answered = subprocess.check_output(command, text=True)
    assert answered.startswith(f"{tmp_path}/train/rows/00002.png can't be read as an image")


@pytest.mark.slow
def test_loader_processes_end_with_their_batches(tmp_path: Path) -> None:
    """With the last reference, and not when the garbage collector finds them: then it would wait for 5 s for each."""
    script = [sys.executable, "-c", _DELETED, str(tmp_path)]
    loaders, running, seconds = subprocess.check_output(script, text=True, timeout=60).split()
    assert (loaders, running) == ("2", "0")
    assert float(seconds) < 4


def test_held_out_images_come_in_order_and_whole(tmp_path: Path) -> None:
    data = images(tmp_path, 60)
    split = open_splits(data, seed=1)["validation"]
    assert len(split) >= 6
    batches = list(eval_batches(split, slice(1, 6), v2.CenterCrop(16), size=2, processes=0))
    assert [len(labels) for _, labels in batches] == [2, 2, 1]
    labels = list(chain.from_iterable(labels.tolist() for _, labels in batches))
    assert labels == split.source.labels[split.numbers[1:6]].tolist()


def test_a_share_is_held_out_by_the_seed(tmp_path: Path) -> None:
    data = images(tmp_path, 300)
    splits, others = open_splits(data, seed=1), open_splits(data, seed=2)
    assert sorted([*splits["train"].numbers, *splits["validation"].numbers]) == list(range(300))
    assert 30 < len(splits["validation"]) < 90
    assert not np.array_equal(splits["train"].numbers, others["train"].numbers)


def test_synthetic_images_have_the_usual_splits() -> None:
    synthetic = {"images": 50, "classes": 3, "test": 7}
    data = Images.model_validate({"synthetic": synthetic, "size": 16, "validation": 0.2, "augment": AUGMENT})
    splits = open_splits(data, seed=1)
    assert sorted([*splits["train"].numbers, *splits["validation"].numbers]) == list(range(50))
    assert splits["test"].numbers.tolist() == list(range(50, 57))
    pixels, labels = train_batches(data).at(0, 1)
    assert (pixels.dtype, pixels.shape, labels.shape) == (torch.uint8, (6, 3, 16, 16), (6,))
    assert "test" not in open_splits(Images.model_validate({"synthetic": {"images": 50, "classes": 3}}), seed=1)


def test_a_share_that_leaves_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leaves a split empty"):
        open_splits(images(tmp_path, validation=1e-6), seed=1)


def test_splits_with_sources_of_their_own_have_the_training_images_classes(tmp_path: Path) -> None:
    train, test = write_folder(tmp_path / "train", 9, 24), write_folder(tmp_path / "test", 2, 24)
    splits = open_splits(images(tmp_path, train=str(train), test=str(test), validation=0.0), seed=1)
    assert set(splits) == {"train", "test"}
    assert splits["test"].source.classes == splits["train"].source.classes


@pytest.mark.parametrize("augment", [[], ["flip"], ["shift"], ["zoom", "flip"]])
def test_every_augmentation_gives_images_of_the_size(tmp_path: Path, augment: list[str]) -> None:
    data = images(tmp_path, train=str(write_folder(tmp_path / "train", 30, 24)), augment=augment)
    assert train_batches(data).at(0, 0)[0].shape == (6, 3, 16, 16)
