"""Builds a job's model, and measures the costs of its blocks: one forward and one backward pass on zeros."""

import hashlib
import json
import logging
import math
import time
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from rolecall.edge.logs import about
from rolecall.kit.builders import Builder, build
from rolecall.kit.cache import build_once
from rolecall.kit.pipelining import cut_indices
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.kit.structure import require_weights, structure_of
from rolecall.spec.errors import InputError
from rolecall.workloads.resnet_pipeline.model import blocks_of, build_resnet
from rolecall.workloads.resnet_pipeline.params import Params, block_names

Module = TypeVar("Module", bound=nn.Module)

_LOG = logging.getLogger(__name__)
_LEAST_CLASSES = 2
_PIXELS = 2**18
"""Large enough for stable measurements, small enough for a few seconds on one core. With fewer, late blocks, which have
many weights, seem more expensive than they are, and the cuts are wrong."""
_COSTS = "costs.json"


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
        cut_indices(params.cut_points, tuple(blocks_of(_require_sequential(model, own))))


def _require_sequential(model: object, own: Builder) -> nn.Sequential:
    if not isinstance(model, nn.Sequential):
        raise InputError(f"{own.builder} returned a {type(model).__name__}, not an nn.Sequential")
    return model


def to_device(module: Module, params: Params, device: torch.device) -> Module:
    """Move `module` to its device, dtype and memory format."""
    # Channels last is a third faster than contiguous on CPUs, and the native format of tensor cores.
    layout = {"device": device, "dtype": weight_dtype(params.precision), "memory_format": torch.channels_last}
    return module.to(**layout)


def block_costs(params: Params, classes: int, device: torch.device, cache: Path) -> list[float]:
    """Seconds for each block of the model on this device.

    The costs of torchvision's models are measured once and kept in the node's `cache`: the stages of a node measure
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
    features = features.detach().requires_grad_(not first)
    begin = _now(features.device)
    with autocast(params.precision, features.device):
        output = block(features)
    output.backward(torch.zeros_like(output))
    return _now(features.device) - begin, output.detach()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
