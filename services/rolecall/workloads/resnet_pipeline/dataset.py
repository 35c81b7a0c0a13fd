"""The job's images as model inputs, in the process that reads them: a first stage, or the tutorial's master."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torchvision.transforms import v2

from rolecall.kit.data_order import DataOrder
from rolecall.kit.images.loader import Batch, TrainBatches, augmentation, eval_batches, open_splits
from rolecall.kit.precision import weight_dtype
from rolecall.workloads.resnet_pipeline.model import normalized, resize_and_crop
from rolecall.workloads.resnet_pipeline.params import Params


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Classes and split sizes of the images."""

    classes: tuple[str, ...]
    images: dict[str, int]
    """The number of images by split."""


class Dataset:
    """One replica's share of the images, normalized: inputs [b, 3, size, size] on `device`, and labels [b]."""

    def __init__(self, params: Params, replica: int, device: torch.device) -> None:
        """Opens the images; raises `InputError` if they are invalid."""
        data, self._params, self._device = params.data, params, device
        self._splits = open_splits(data, params.seed)
        train = self._splits["train"]
        self._train = TrainBatches(
            train,
            v2.Compose([*augmentation(data), resize_and_crop(data.size)]),
            DataOrder(len(train), params.batch_size, params.seed),
            rank=replica,
            replicas=params.replicas,
            processes=data.loader_processes,
        )
        self.info = DatasetInfo(train.source.classes, {name: len(split) for name, split in self._splits.items()})

    def training_batch(self, epoch: int, step: int) -> Batch:
        """The replica's share of batch `step` of `epoch`."""
        return self._as_inputs(self._train.at(epoch, step))

    def evaluation_batches(self, split: str, share: slice, size: int) -> Iterator[Batch]:
        """The images of `share` of a split in order, in batches of `size`; the last batch may be short."""
        data = self._params.data
        batches = eval_batches(self._splits[split], share, resize_and_crop(data.size), size, data.loader_processes)
        return map(self._as_inputs, batches)

    def _as_inputs(self, batch: Batch) -> Batch:
        images, labels = batch
        data, dtype = self._params.data, weight_dtype(self._params.precision)
        return normalized(images.to(self._device), data.mean, data.std, dtype), labels
