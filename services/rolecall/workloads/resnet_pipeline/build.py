# pyright: standard
"""Builds what a job's parameters describe: the model, each stage's part of it, and the images as model inputs.

Also measures the costs of the model's blocks, for the cuts: one forward and one backward pass on zeros.
"""

import hashlib
import json
import logging
import math
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from torch import nn
from torchvision.transforms import v2

from rolecall.kit import CheckpointError, InputError
from rolecall.kit.builders import Builder, build, explain_errors
from rolecall.kit.cache import build_once
from rolecall.kit.checkpoint import flatten_named_optimizer, restore_named_optimizer
from rolecall.kit.data_order import DataOrder
from rolecall.kit.images.loader import Batch, TrainBatches, augmentation, eval_batches, open_splits
from rolecall.kit.metrics import cross_entropies, one_hot_errors
from rolecall.kit.optimizers import dense_optimizer, scale_rates
from rolecall.kit.pipelining import cut_indices, listed
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.kit.split_backward import WeightPass, split_backward
from rolecall.kit.structure import require_weights, structure_of
from rolecall.kit.worker import about
from rolecall.workloads.resnet_pipeline.model import Blocks, blocks_of, build_resnet, normalized, resize_and_crop
from rolecall.workloads.resnet_pipeline.params import Params, block_names

Module = TypeVar("Module", bound=nn.Module)

_LOG = logging.getLogger(__name__)
_LEAST_CLASSES = 2
_PIXELS = 2**18
"""Large enough for stable measurements, small enough for a few seconds on one core. With fewer, late blocks, which have
many weights, seem more expensive than they are, and the cuts are wrong."""
_FIT_IMAGES = 2
_IMAGE_DIMENSIONS = 4
_COSTS = "costs.json"
_MODEL, _OPTIMIZER = "model/", "optimizer/"
SAMPLE_LOSSES = {"cross-entropy": cross_entropies, "mse": one_hot_errors}
"""For each `loss`, the function from outputs [b, classes] and labels [b] to the losses [b] of scores."""


def whole_model(params: Params, classes: int) -> nn.Module:
    """The whole model with its initial weights, the same in every process.

    Raises `InputError` if a custom model can't be built or can't be cut.
    """
    torch.manual_seed(params.seed)
    if isinstance(params.model, str):
        return build_resnet(params.model, classes, params.norm)
    own = _require_sequential(build(params.model, classes), params.model)
    require_weights(own, params.model.builder)
    return own


def check_cuts(params: Params, own: Builder) -> None:
    """Raises `InputError` for cuts that a custom model can't have, before it has weights.

    A model that can't be built without weights is checked only when it is built with them.
    """
    # The names of blocks are those for any number of classes, which a node without the images doesn't know.
    model = structure_of(own, _LEAST_CLASSES)
    if model is not None:
        given_cuts(params, blocks_with_weights(_require_sequential(model, own)))


def blocks_with_weights(model: nn.Module) -> dict[str, bool]:
    """The names of the model's blocks in order; true for those with weights."""
    return {name: any(True for _ in block.parameters()) for name, block in blocks_of(model).items()}


def given_cuts(params: Params, blocks: Mapping[str, bool]) -> list[int]:
    """The indices of the blocks in `cuts`, among those of `blocks_with_weights`.

    Raises `InputError` for cuts that the model can't have, and for a stage without weights, which has nothing to train.
    """
    names = tuple(blocks)
    cuts = cut_indices(params.cut_points, names)
    for begin, end in pairwise([0, *cuts, len(names)]):
        if not any(blocks[name] for name in names[begin:end]):
            raise InputError(
                f"cuts: a stage would have only {listed(names[begin:end])}, without weights to train; each stage needs "
                f"one of the blocks with weights: {listed([name for name in names if blocks[name]])}"
            )
    return cuts


def _require_sequential(model: object, own: Builder) -> nn.Sequential:
    if not isinstance(model, nn.Sequential):
        raise InputError(f"{own.builder} returned a value of the type {type(model).__name__}, not nn.Sequential")
    return model


@torch.no_grad()
def require_fit(params: Params, model: nn.Module, device: torch.device) -> None:
    """Raises `InputError` if a custom model fails on images of the job's size. Moves its blocks."""
    if isinstance(params.model, str):
        return
    size = params.data.size
    features = torch.zeros(
        min(_FIT_IMAGES, params.micro_batch_size), 3, size, size, dtype=weight_dtype(params.precision), device=device
    )
    for name, block in blocks_of(model).items():
        explanation = (
            f"{params.model.builder}: block {name} ({type(block).__name__}) fails on images of {size} x {size}"
        )
        to_device(block, params, device).eval()
        with explain_errors(explanation, "change data.size or the model"), autocast(params.precision, device):
            features = block(features)
        block.cpu()  # All blocks together may not fit on one GPU.


def to_device(module: Module, params: Params, device: torch.device) -> Module:
    """Move `module` to its device, dtype and memory format."""
    # Channels last is a third faster than contiguous on CPUs, and the native format of tensor cores.
    layout = {"device": device, "dtype": weight_dtype(params.precision), "memory_format": torch.channels_last}
    return module.to(**layout)


def block_costs(params: Params, classes: int, device: torch.device, cache: Path) -> list[float]:
    """Seconds for each block of the model on this device.

    The costs of torchvision's models are measured once and kept in the owner's `cache`: the stages of a node measure
    only once, and later jobs have the same cuts at once. The code of custom models can change, so their costs are
    always measured.
    """
    if not isinstance(params.model, str):
        return _measure(params, classes, device)
    measured: list[float] = []

    def store(folder: Path) -> None:
        measured.extend(_measure(params, classes, device))
        (folder / _COSTS).write_text(json.dumps(measured))

    file = build_once(cache / "block-costs", _costs_key(params, classes, device), store) / _COSTS
    count = len(block_names(params.model))
    try:
        costs = measured or [float(cost) for cost in json.loads(file.read_text())]
        valid = len(costs) == count and all(math.isfinite(cost) and cost > 0 for cost in costs)
    except (OSError, TypeError, ValueError):
        costs, valid = [], False
    if valid:
        return costs
    # A job can write in the cache. Wrong costs can make this job slow, but not fail.
    text = "%s doesn't hold the costs of %d blocks, so they are measured again; delete its folder"
    _LOG.warning(text, file, count, extra=about("block_costs_invalid"))
    return _measure(params, classes, device)


def _costs_key(params: Params, classes: int, device: torch.device) -> str:
    """Identifies everything that the costs depend on."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.get_num_threads()
    shape = [params.model, params.norm, classes, params.data.size, _images(params), params.precision]
    content = json.dumps([torch.__version__, hardware, *shape])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _images(params: Params) -> int:
    """The number of images that are measured."""
    return min(params.micro_batch_size, max(2, _PIXELS // params.data.size**2))


def _measure(params: Params, classes: int, device: torch.device) -> list[float]:
    """Seconds for each block: the faster of two runs, because libraries select kernels in the first one. Equal blocks
    with inputs of the same shape are measured once."""
    model, size = to_device(whole_model(params, classes), params, device), params.data.size
    features = torch.zeros(_images(params), 3, size, size, dtype=weight_dtype(params.precision), device=device)
    features = features.contiguous(memory_format=torch.channels_last)
    known: dict[tuple[object, ...], tuple[float, torch.Tensor]] = {}
    costs: list[float] = []
    for index, block in enumerate(blocks_of(model).values()):
        key = (index > 0, features.shape, repr(block), tuple(weight.shape for weight in block.parameters()))
        if key not in known:
            runs = [_run(params, block, features, first=index == 0) for _ in range(2)]
            known[key] = min(seconds for seconds, _ in runs), runs[-1][1]
        seconds, features = known[key]
        costs.append(seconds)
    return costs


def _run(params: Params, block: nn.Module, features: torch.Tensor, *, first: bool) -> tuple[float, torch.Tensor]:
    """The seconds of a forward and a backward pass of the block, and its output, detached."""
    features = _not_a_leaf(features.detach().requires_grad_(not first))
    begin = _now(features.device)
    with autocast(params.precision, features.device):
        output = block(features)
    if output.requires_grad:  # False for a first block without weights.
        output.backward(torch.zeros_like(output))
    return _now(features.device) - begin, output.detach()


def _not_a_leaf(features: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor that a block may change in place, as `ReLU(inplace=True)` does.

    Autograd forbids this for leaves that require gradients and for their views. It doesn't track this tensor as a view.
    """
    return torch.ops.aten._unsafe_view(features, features.shape)  # torch has no public name


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def mean_loss(params: Params, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean training loss of outputs [b, classes] for labels [b], in the data type of the weights."""
    outputs = outputs.to(weight_dtype(params.precision))
    if params.loss == "mse":
        return one_hot_errors(outputs, labels).mean()
    return F.cross_entropy(outputs, labels, label_smoothing=params.label_smoothing)


class ModelPart:
    """Consecutive blocks. Inputs and outputs are [b, channels, height, width]; the last part outputs the loss."""

    def __init__(self, params: Params, classes: int, names: Sequence[str], device: torch.device) -> None:
        self._params, self._device = params, device
        self._autocast = autocast(params.precision, device)
        blocks = Blocks(whole_model(params, classes), names)
        self.blocks = to_device(blocks, params, device)
        self._optimizer = dense_optimizer(params.optimizer).build(self.blocks.parameters())
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._deferred: list[WeightPass] = []
        self._weight_passes: dict[int, list[WeightPass]] = {}

    def split_backward(self) -> None:
        """From now on, `backward` leaves most gradients of weights to `backward_weights`."""
        split_backward(self.blocks, self._deferred)

    def compute(self, features: torch.Tensor) -> torch.Tensor:
        """The blocks' outputs, with autograd graph."""
        features = features.to(self._device)
        if features.dim() == _IMAGE_DIMENSIONS:  # Fewer after `Flatten`.
            features = features.contiguous(memory_format=torch.channels_last)
        with self._autocast:
            return self.blocks(features)

    def forward(self, micro_batch: int, features: torch.Tensor, *, needs_input_gradient: bool) -> torch.Tensor:
        """The outputs for the next stage; saves inputs and outputs for `backward`."""
        inputs = features.to(self._device).requires_grad_(needs_input_gradient)
        outputs = self.compute(_not_a_leaf(inputs))
        self._saved[micro_batch] = inputs, outputs
        return outputs.detach()

    def forward_loss(self, micro_batch: int, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """At the last stage, the micro-batch's contribution to its replica's mean loss; saves inputs and loss."""
        self.forward(micro_batch, features, needs_input_gradient=True)
        inputs, logits = self._saved[micro_batch]
        loss = mean_loss(self._params, logits, labels.to(self._device)) / self._params.micro_batches
        self._saved[micro_batch] = inputs, loss
        return loss.detach()

    def backward(self, micro_batch: int, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """Accumulate the micro-batch's gradients. Returns the gradient for the previous stage, if any.

        After `split_backward`, call `backward_weights` for the rest.
        """
        inputs, outputs = self._saved.pop(micro_batch)
        if outputs.requires_grad:  # False at a first stage whose weights are all frozen.
            outputs.backward(None if gradient is None else gradient.to(self._device))
        self._weight_passes[micro_batch] = self._deferred[:]
        self._deferred.clear()
        return inputs.grad

    def backward_weights(self, micro_batch: int) -> None:
        """Accumulate the micro-batch's gradients of weights that `backward` has left."""
        for accumulate in self._weight_passes.pop(micro_batch):
            accumulate()

    @contextmanager
    def inference(self) -> Generator[None]:
        """Evaluation mode without gradients."""
        self.blocks.eval()
        with torch.no_grad():
            yield
        self.blocks.train()

    def update(self, rate_factor: float) -> None:
        """Step the optimizer with the learning rate times `rate_factor`, then clear the gradients."""
        scale_rates(self._optimizer, rate_factor)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def replicated_tensors(self) -> Iterator[torch.Tensor]:
        """The tensors to average over replicas after a step's backward passes: gradients and running statistics."""
        yield from (parameter.grad for parameter in self.blocks.parameters() if parameter.grad is not None)
        yield from (buffer for buffer in self.blocks.buffers() if buffer.is_floating_point())

    def weights(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers on the CPU, by their names in the whole model."""
        names = self.blocks.model_names
        return {names[name]: value.cpu().contiguous() for name, value in self.blocks.state_dict().items()}

    def state(self) -> dict[str, torch.Tensor]:
        """Weights and optimizer state for checkpoints, by names that don't depend on the cuts."""
        model = {_MODEL + name: value for name, value in self.weights().items()}
        return model | flatten_named_optimizer(self._optimizer, self._parameters(), _OPTIMIZER)

    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore from the `state` of all parts; raises `CheckpointError` if a tensor is missing."""
        keys = {name: _MODEL + whole_name for name, whole_name in self.blocks.model_names.items()}
        if missing := [name for name in keys.values() if name not in tensors]:
            raise CheckpointError(
                f"the checkpoint lacks {missing[0]} and {len(missing) - 1} more tensors of this stage"
            )
        self.blocks.load_state_dict({name: tensors[key] for name, key in keys.items()})
        restore_named_optimizer(self._optimizer, self._parameters(), tensors, _OPTIMIZER)

    def _parameters(self) -> dict[str, nn.Parameter]:
        """The parameters by their names in the whole model."""
        return {self.blocks.model_names[name]: parameter for name, parameter in self.blocks.named_parameters()}


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Classes of the images, and what replicas must agree on about each split."""

    classes: tuple[str, ...]
    images: dict[str, int]
    """The number of images by split."""
    fingerprints: dict[str, str]
    """The fingerprint of its source by split."""


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
        images = {name: len(split) for name, split in self._splits.items()}
        fingerprints = {name: split.source.fingerprint for name, split in self._splits.items()}
        self.info = DatasetInfo(train.source.classes, images, fingerprints)

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
