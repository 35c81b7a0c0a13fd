"""Measured costs of the blocks: one forward and one backward pass on zeros."""

import time
from collections.abc import Iterator

import torch

from rolecall.kit.precision import autocast, weight_dtype
from rolecall.workloads.resnet_pipeline.model import blocks_of
from rolecall.workloads.resnet_pipeline.model_part import to_device, whole_model
from rolecall.workloads.resnet_pipeline.params import Params

# Large enough for stable measurements, small enough for a few seconds on one core.
_PIXELS = 2**18
_PASSES = 2


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
