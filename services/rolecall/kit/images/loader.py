# pyright: standard
"""Batches of images, decoded and augmented in loader processes; the same for any number of processes.

Augmentation depends only on (seed, epoch, image), and a batch on (epoch, step), so that loading can start at any step.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from rolecall.kit.data_order import DataOrder, derive_seed, held_out
from rolecall.kit.images.params import Idx, Images
from rolecall.kit.images.sources import GeneratedImages, LabeledImages, open_source
from rolecall.process import die_with_parent
from rolecall.spec.errors import InputError

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images, bytes [b, 3, size, size], and their labels [b], each in [0, classes)."""
Transform = Callable[[Image.Image], Image.Image]
_Key = tuple[int, int]  # epoch, index in the split

_MIN_CROP_AREA = 0.25  # a zoom keeps at least a quarter of the image's area
_INPUT_ERROR = f"{InputError.__module__}.{InputError.__qualname__}: "


@dataclass(frozen=True)
class ImageSplit:
    source: LabeledImages
    numbers: NDArray[np.int64]
    """[n] the numbers of the images in `source`."""

    def __len__(self) -> int:
        return len(self.numbers)


def open_splits(images: Images, seed: int) -> dict[str, ImageSplit]:
    """The splits of the job, all with the classes of the training split.

    Raises `InputError` for a source that is missing or invalid.
    """
    splits = _generated_splits(images) if images.train is None else _read_splits(images, images.train)
    if images.has_validation and "validation" not in splits:
        assert isinstance(images.validation, float)
        numbers = splits["train"].numbers
        held = held_out(numbers, images.validation, seed)
        if held.all() or not held.any():
            raise InputError(
                f"data.validation {images.validation} of {len(held)} images leaves a split empty; choose another share"
            )
        source = splits["train"].source
        splits |= {"train": ImageSplit(source, numbers[~held]), "validation": ImageSplit(source, numbers[held])}
    return splits


def _read_splits(images: Images, train: str | Idx) -> dict[str, ImageSplit]:
    """The splits that have files of their own."""
    source = open_source(train, images.classes)
    splits = {"train": ImageSplit(source, np.arange(len(source.labels)))}
    for split, other in images.sources.items():
        if split != "train":
            opened = open_source(other, source.classes)
            splits[split] = ImageSplit(opened, np.arange(len(opened.labels)))
    return splits


def _generated_splits(images: Images) -> dict[str, ImageSplit]:
    assert images.synthetic is not None
    source = GeneratedImages(images.synthetic, images.size)
    train, test = np.split(np.arange(len(source.labels)), [images.synthetic.images])
    splits = {"train": ImageSplit(source, train)}
    return splits | {"test": ImageSplit(source, test)} if len(test) else splits


def augmentation(images: Images) -> list[v2.Transform]:
    """The random transforms of training images, applied before they are resized."""
    transforms = {
        "zoom": [v2.RandomResizedCrop(images.size, scale=(_MIN_CROP_AREA, 1.0))],
        "shift": [v2.Resize(images.size), v2.RandomCrop(images.size, padding=images.size // 8)],
        "flip": [v2.RandomHorizontalFlip()],
    }
    return [transform for name in ("zoom", "shift", "flip") if name in images.augment for transform in transforms[name]]


class TrainBatches:
    """One replica's share of every global batch of training images."""

    def __init__(
        self, split: ImageSplit, transform: Transform, order: DataOrder, *, rank: int, replicas: int, processes: int
    ) -> None:
        self._examples = _ImageDataset(split, transform, order.seed)
        self._order, self._rank, self._replicas, self._processes = order, rank, replicas, processes
        self._next: tuple[int, int] | None = None
        self._batches: Iterator[Batch] = iter(())

    def at(self, epoch: int, step: int) -> Batch:
        """This share of batch `step` of `epoch`; sequential access uses prefetched batches."""
        if (epoch, step) != self._next:
            keys = _KeySampler(self._order, self._rank, self._replicas, epoch, step)
            self._batches = _load_batches(self._examples, keys, self._processes)
        self._next = _next_position(self._order, epoch, step)
        return next(self._batches)


def eval_batches(split: ImageSplit, share: slice, transform: Transform, size: int, processes: int) -> Iterator[Batch]:
    """The images of `share` of a split in order, in batches of `size`; the last batch may be short."""
    indices = range(len(split))[share]
    keys = [[(0, index) for index in indices[start : start + size]] for start in range(0, len(indices), size)]
    return _load_batches(_ImageDataset(split, transform, 0), keys, processes)


class _ImageDataset(Dataset[Batch]):
    """Maps (epoch, index in the split) to an image and its label."""

    def __init__(self, split: ImageSplit, transform: Transform, seed: int) -> None:
        self._split, self._seed = split, seed
        self._transform = v2.Compose([transform, v2.RGB(), v2.PILToTensor()])

    def __getitem__(self, key: _Key) -> Batch:
        epoch, index = key
        number = int(self._split.numbers[index])
        image, label = self._split.source.image(number), self._split.source.labels[number]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(derive_seed(self._seed, epoch), number))
            return self._transform(image), torch.tensor(label)


@dataclass(frozen=True, slots=True)
class _KeySampler:
    """A batch sampler of one replica's share of the global batches from `step` of `epoch` on.

    It has no reference to the batches, whose loader has it: the processes of a loader end with the last reference to
    its iterator. In a cycle, the garbage collector would close the queues first by which the iterator tells them to
    end. Then it waits 5 s for each of them.
    """

    order: DataOrder
    rank: int
    replicas: int
    epoch: int
    step: int

    def __iter__(self) -> Iterator[list[_Key]]:
        """Endless, so that the first batches of an epoch are loaded during the evaluation before it."""
        epoch, step = self.epoch, self.step
        while True:
            indices = self.order.share(epoch, step, self.rank, self.replicas)
            yield [(epoch, index) for index in indices.tolist()]
            epoch, step = _next_position(self.order, epoch, step)


def _next_position(order: DataOrder, epoch: int, step: int) -> tuple[int, int]:
    """The epoch and the step of the next full batch: an epoch's last batch is dropped if it is short."""
    return (epoch, step + 1) if step + 1 < order.rows // order.batch_size else (epoch + 1, 0)


def _load_batches(examples: _ImageDataset, keys: Iterable[list[_Key]], processes: int) -> Iterator[Batch]:
    loader = DataLoader(
        examples,
        batch_sampler=keys,  # type: ignore[arg-type] - any iterable of lists of keys does
        num_workers=processes,
        multiprocessing_context="fork" if processes else None,
        worker_init_fn=_die_with_parent if processes else None,
        generator=torch.Generator(),
    )
    try:
        yield from loader
    except InputError as error:
        # The DataLoader re-raises an error with its traceback as the message; the last line is the original message.
        raise InputError(str(error).strip().splitlines()[-1].removeprefix(_INPUT_ERROR)) from error


def _die_with_parent(_: int) -> None:
    """A loader process inherits its parent's sockets. If it outlived the parent, peers would not notice the death."""
    die_with_parent()
