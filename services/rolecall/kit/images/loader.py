"""Images as batches of bytes, decoded and augmented in loader processes, the same ones whatever their number.

What is drawn for an image depends on (seed, epoch, image) alone, and a batch on (epoch, step): any step can be asked
for.
"""

import ctypes
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from rolecall.kit.data_order import DataOrder, derive_seed, splitmix64
from rolecall.kit.images.params import Images
from rolecall.kit.images.sources import Labelled, open_source
from rolecall.spec.errors import InputError

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images, bytes [b, 3, size, size], and their labels [b], each in [0, classes)."""
Transform = Callable[[Image.Image], Image.Image]
_Key = tuple[int, int]  # epoch, place in the split

_SPLITS = ("train", "validation", "test")
_MOST_ZOOM = 0.25  # a zoom keeps a quarter of the image's area or more
_INPUT_ERROR = f"{InputError.__module__}.{InputError.__qualname__}: "
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Split:
    """Some of a source's images."""

    source: Labelled
    numbers: NDArray[np.int64]
    """[n] which."""

    def __len__(self) -> int:
        return len(self.numbers)


def open_splits(images: Images, seed: int) -> dict[str, Split]:
    """The training images, and those held out, where there are any; all with the training images' classes.

    Raises `InputError` for a source that is missing or wrong.
    """
    train = open_source(images.train, images.classes)
    splits = {"train": Split(train, np.arange(len(train.labels)))}
    for split, source in images.sources.items():
        if split != "train":
            opened = open_source(source, train.classes)
            splits[split] = Split(opened, np.arange(len(opened.labels)))
    if images.has_validation and "validation" not in splits:
        assert isinstance(images.validation, float)
        splits |= _held_out(train, images.validation, seed)
    return splits


def _held_out(source: Labelled, share: float, seed: int) -> dict[str, Split]:
    """Both parts of the training images; a hash of an image's number and the seed decides."""
    numbers = np.arange(len(source.labels))
    held = splitmix64(numbers.astype(np.uint64), derive_seed(seed, len(_SPLITS))) < np.uint64(int(share * 2**64))
    if held.all() or not held.any():
        raise InputError(f"data.validation {share} of {len(held)} images leaves one part empty; change it")
    return {"train": Split(source, numbers[~held]), "validation": Split(source, numbers[held])}


def augmentation(images: Images) -> list[v2.Transform]:
    """The random changes of training images, to be made before they are brought to their size."""
    made = {
        "zoom": [v2.RandomResizedCrop(images.size, scale=(_MOST_ZOOM, 1.0))],
        "shift": [v2.Resize(images.size), v2.RandomCrop(images.size, padding=images.size // 8)],
        "flip": [v2.RandomHorizontalFlip()],
    }
    return [transform for name in ("zoom", "shift", "flip") if name in images.augment for transform in made[name]]


class TrainBatches:
    """One replica's share of every global batch of training images."""

    def __init__(
        self, split: Split, transform: Transform, order: DataOrder, *, rank: int, replicas: int, processes: int
    ) -> None:
        self._examples = _Examples(split, transform, order.seed)
        self._order, self._rank, self._replicas, self._processes = order, rank, replicas, processes
        self._steps = order.rows // order.batch_size  # what doesn't fill a batch is left out
        self._next: tuple[int, int] | None = None
        self._batches: Iterator[Batch] = iter(())

    def at(self, epoch: int, step: int) -> Batch:
        """This share of the batch `step` of `epoch`; quick if it follows on the one asked for before."""
        if (epoch, step) != self._next:
            self._batches = _loaded(self._examples, _Keys(lambda: self._keys_from(epoch, step)), self._processes)
        self._next = (epoch, step + 1) if step + 1 < self._steps else (epoch + 1, 0)
        return next(self._batches)

    def _keys_from(self, epoch: int, step: int) -> Iterator[list[_Key]]:
        """Without end, so that an epoch's first batches are made while the one before is scored."""
        while True:
            places = self._order.share(epoch, step, self._rank, self._replicas)
            yield [(epoch, place) for place in places.tolist()]
            epoch, step = (epoch, step + 1) if step + 1 < self._steps else (epoch + 1, 0)


def held_batches(split: Split, part: slice, transform: Transform, size: int, processes: int) -> Iterator[Batch]:
    """The images of `part` of a split, in their order, `size` at a time; the last batch may be short."""
    places = range(len(split))[part]
    keys = [[(0, place) for place in places[start : start + size]] for start in range(0, len(places), size)]
    return _loaded(_Examples(split, transform, 0), keys, processes)


class _Examples(Dataset[Batch]):
    """An image and its label, for (epoch, place in the split)."""

    def __init__(self, split: Split, transform: Transform, seed: int) -> None:
        self._split, self._seed = split, seed
        self._transform = v2.Compose([transform, v2.RGB(), v2.PILToTensor()])

    def __getitem__(self, key: _Key) -> Batch:
        epoch, place = key
        number = int(self._split.numbers[place])
        image, label = self._split.source.image(number), self._split.source.labels[number]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(derive_seed(self._seed, epoch), number))
            return self._transform(image), torch.tensor(label)


class _Keys:
    """Batches of keys, made anew by each iteration."""

    def __init__(self, make: Callable[[], Iterator[list[_Key]]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[list[_Key]]:
        return self._make()


def _loaded(examples: _Examples, keys: Iterable[list[_Key]] | Sequence[list[_Key]], processes: int) -> Iterator[Batch]:
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
        # A loader process's error comes back with its whole traceback as its text; the last line is what it said.
        raise InputError(str(error).strip().splitlines()[-1].removeprefix(_INPUT_ERROR)) from error


def _die_with_parent(_: int) -> None:
    """A loader process has copies of its parent's sockets: were it to live on, the peers would not notice a death."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
