"""Cuts the decoder into virtual stages, with either of torch's two methods, and initializes its weights."""

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline

from rolecall.kit.data_order import derive_seed
from rolecall.workloads.transformer_pipeline.grid import Grid
from rolecall.workloads.transformer_pipeline.model import Cut, Decoder, Layer, MakeLayer, Shape

_STD = 0.02


def layer_cuts(layers: int, stages: int, head: float) -> list[Cut]:
    """Balanced cuts into `stages` (2 or more) parts of at least one layer, with minimal cost of the slowest part.

    `head` is the cost of the output projection in layers; the last stage gets fewer layers to compensate.
    """
    choices = range(1, layers - stages + 2)
    last = min(choices, key=lambda count: (max(count + head, -(-(layers - count) // (stages - 1))), -count))
    ends = [(layers - last) * (stage + 1) // (stages - 1) for stage in range(stages - 1)] + [layers]
    return [
        Cut(first, end, embeds=first == 0, predicts=end == layers)
        for first, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


def head_cost(shape: Shape, make_layer: MakeLayer | None = None) -> float:
    """The output projection's cost in layers: multiplications per token are equal to the number of weights."""
    with torch.device("meta"):
        layer = make_layer(0) if make_layer else Layer(shape)
    return shape.dim * shape.vocabulary / max(1, sum(weight.numel() for weight in layer.parameters()))


def build(
    shape: Shape,
    cut: Cut | None,
    *,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    make_layer: MakeLayer | None = None,
) -> Decoder:
    """The decoder or a part of it, with initial weights that don't depend on the cuts."""
    part = Decoder(shape, cut, make_layer)
    for name, parameter in part.named_parameters():
        if make_layer is None or not name.startswith("layers."):
            _init_weight(name, parameter, seed, shape.layers)
    return part.to(device, dtype)


@torch.no_grad()
def _init_weight(name: str, parameter: nn.Parameter, seed: int, layers: int) -> None:
    """GPT-2's initialization: normal, scaled down for residual projections; biases 0, norm weights 1."""
    if parameter.ndim == 1:
        parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        return
    residual = name.endswith(("attention.output.weight", "perceptron.2.weight"))
    key = derive_seed(seed, zlib.crc32(name.encode()))
    generator = torch.Generator().manual_seed(key % 2**63)
    parameter.normal_(0.0, _STD / (2 * layers) ** 0.5 if residual else _STD, generator=generator)


def manual_stages(
    parts: dict[int, Decoder], stages: int, rows: int, logits: torch.dtype, grid: Grid
) -> list[PipelineStage]:
    """Torch's stages for this rank's `parts`, keyed by stage index; a micro-batch has `rows` sequences.

    Passes input and output shapes explicitly. Otherwise torch infers them by a forward pass, which in some versions
    (2.11) advances the random state for dropout, so that a resumed training would differ.
    """
    return [
        PipelineStage(
            part,
            index,
            stages,
            grid.device,
            input_args=_tokens(part, rows) if index == 0 else _activations(part, rows),
            output_args=_logits(part, rows, logits) if index == stages - 1 else _activations(part, rows),
            group=grid.pipeline_group,
        )
        for index, part in parts.items()
    ]


def _tokens(part: Decoder, rows: int) -> torch.Tensor:
    return torch.empty(rows, part.shape.context, dtype=torch.int64, device="meta")


def _activations(part: Decoder, rows: int) -> torch.Tensor:
    kind = next(part.parameters()).dtype
    return torch.empty(rows, part.shape.context, part.shape.dim, dtype=kind, device="meta", requires_grad=True)


def _logits(part: Decoder, rows: int, kind: torch.dtype) -> torch.Tensor:
    shape = part.shape
    return torch.empty(rows, shape.context, shape.vocabulary, dtype=kind, device="meta", requires_grad=True)


def traced_stages(
    whole: Decoder, cuts: Sequence[Cut], stage_indices: Sequence[int], micro_batch: torch.Tensor, grid: Grid
) -> list[Any]:
    """Torch's stages `stage_indices` from a trace of the whole model, which must temporarily fit in memory.

    The trace is specialized to tokens [sequences, context] of the shape of `micro_batch`.
    """
    points = {f"layers.{cut.first}": SplitPoint.BEGINNING for cut in cuts if not cut.embeds}
    pipe = pipeline(whole, mb_args=(micro_batch,), split_spec=points)
    return [pipe.build_stage(index, grid.device, grid.pipeline_group) for index in stage_indices]
