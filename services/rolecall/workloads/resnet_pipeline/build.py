"""Builds a job's model, and measures the costs of its blocks: one forward and one backward pass on zeros."""

import time
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import nn

from rolecall.kit.builders import build
from rolecall.kit.precision import autocast, weight_dtype
from rolecall.spec.errors import InputError
from rolecall.workloads.resnet_pipeline.model import blocks_of, build_resnet
from rolecall.workloads.resnet_pipeline.params import Params

Module = TypeVar("Module", bound=nn.Module)

# Large enough for stable measurements, small enough for a few seconds on one core.
_PIXELS = 2**18
_PASSES = 2


def whole_model(params: Params, classes: int) -> nn.Module:
    """The whole model with its initial weights, the same in every process.

    Raises `InputError` if a custom model can't be built or can't be cut.
    """
    torch.manual_seed(params.seed)
    if isinstance(params.model, str):
        return build_resnet(params.model, classes, params.norm)
    own = build(params.model, classes)
    if not isinstance(own, nn.Sequential):
        raise InputError(f"{params.model.builder} returned a {type(own).__name__}, not an nn.Sequential")
    return own


def to_device(module: Module, params: Params, device: torch.device) -> Module:
    """Move `module` to its device, dtype and memory format."""
    # Channels last is a third faster than contiguous on CPUs, and the native format of tensor cores.
    layout = {"device": device, "dtype": weight_dtype(params.precision), "memory_format": torch.channels_last}
    return module.to(**layout)


def block_costs(params: Params, classes: int, device: torch.device) -> list[float]:
    """Seconds for each block of the model; the minimum of two passes, to reduce noise from other processes."""
    model = to_device(whole_model(params, classes), params, device)
    chain = list(blocks_of(model).values())
    # Warm-up pass: libraries select kernels at the first call.
    passes = [list(_one_pass(params, chain, device)) for _ in range(1 + _PASSES)]
    return [min(seconds) for seconds in zip(*passes[1:], strict=True)]


def _one_pass(params: Params, chain: list[torch.nn.Module], device: torch.device) -> Iterator[float]:
    size = params.data.size
    count = min(params.micro_batch_size, max(2, _PIXELS // size**2))
    features = torch.zeros(count, 3, size, size, dtype=weight_dtype(params.precision), device=device)
    features = features.contiguous(memory_format=torch.channels_last)
    for index, block in enumerate(chain):
        features = features.detach().requires_grad_(index > 0)
        begin = _now(device)
        with autocast(params.precision, device):
            features = block(features)
        features.backward(torch.zeros_like(features))
        yield _now(device) - begin


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
