"""What each block costs the process that asks: one forward and one backward pass on made-up images."""

import time
from collections.abc import Iterator

import torch

from rolecall.kit.precision import autocast, weight_dtype
from rolecall.workloads.resnet_pipeline.model import blocks_of
from rolecall.workloads.resnet_pipeline.params import Params
from rolecall.workloads.resnet_pipeline.shard import on_device, whole_model

# Enough to be measured well, and little enough to take a few seconds on a core.
_PIXELS = 2**18
_PASSES = 2


def block_costs(params: Params, classes: int, device: torch.device) -> list[float]:
    """Seconds for each block of the model; the better of two passes, so that a neighbour's work counts little."""
    model = on_device(whole_model(params, classes), params, device)
    chain = list(blocks_of(model).values())
    # One pass is for warming up: libraries choose their kernels at the first call.
    passes = [list(_one_pass(params, chain, device)) for _ in range(1 + _PASSES)]
    return [min(seconds) for seconds in zip(*passes[1:], strict=True)]


def _one_pass(params: Params, chain: list[torch.nn.Module], device: torch.device) -> Iterator[float]:
    size = params.data.size
    count = min(params.micro_batch_size, max(2, _PIXELS // size**2))
    features = torch.zeros(count, 3, size, size, dtype=weight_dtype(params.precision), device=device)
    features = features.contiguous(memory_format=torch.channels_last)
    for place, block in enumerate(chain):
        features = features.detach().requires_grad_(place > 0)
        begin = _now(device)
        with autocast(params.precision, device):
            features = block(features)
        features.backward(torch.zeros_like(features))
        yield _now(device) - begin


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
