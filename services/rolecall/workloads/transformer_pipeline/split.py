"""The decoder cut into virtual stages: where, with which first weights, and by which of torch's two ways."""

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
    """`stages` (2 or more) parts of at least a layer each, the costliest as cheap as can be.

    `head` is the cost of the output matrix, in layers: it runs in the last stage, which gets fewer layers for it.
    """
    choices = range(1, layers - stages + 2)
    last = min(choices, key=lambda count: (max(count + head, -(-(layers - count) // (stages - 1))), -count))
    ends = [(layers - last) * (stage + 1) // (stages - 1) for stage in range(stages - 1)] + [layers]
    return [
        Cut(first, end, embeds=first == 0, predicts=end == layers)
        for first, end in zip([0, *ends[:-1]], ends, strict=True)
    ]


def head_cost(shape: Shape, make_layer: MakeLayer | None = None) -> float:
    """The output matrix's cost in layers: as many multiplications for each token as there are weights."""
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
    """A part of the decoder, or the whole, with its first weights, which are the same however it is cut."""
    part = Decoder(shape, cut, make_layer)
    for name, parameter in part.named_parameters():
        if make_layer is None or not name.startswith("layers."):
            _fill(name, parameter, seed, shape.layers)
    return part.to(device, dtype)


@torch.no_grad()
def _fill(name: str, parameter: nn.Parameter, seed: int, layers: int) -> None:
    """GPT-2's first weights: normal, smaller where a layer adds to what came in; biases 0, the norms' gains 1."""
    if parameter.ndim == 1:
        parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        return
    adds = name.endswith(("attention.output.weight", "perceptron.2.weight"))
    key = derive_seed(seed, zlib.crc32(name.encode()))
    generator = torch.Generator().manual_seed(key % 2**63)
    parameter.normal_(0.0, _STD / (2 * layers) ** 0.5 if adds else _STD, generator=generator)


def manual_stages(
    parts: dict[int, Decoder], stages: int, rows: int, logits: torch.dtype, grid: Grid
) -> list[PipelineStage]:
    """Torch's stages of the parts that this rank holds, by their place in the pipeline; `rows` sequences pass at once.

    They are told what comes in and goes out. Else torch would find out by a pass of its own, in which some versions
    (2.11) draw dropout, and a resumed training would go another way.
    """
    return [
        PipelineStage(
            part,
            index,
            stages,
            grid.device,
            input_args=_tokens(part, rows) if index == 0 else _vectors(part, rows),
            output_args=_logits(part, rows, logits) if index == stages - 1 else _vectors(part, rows),
            group=grid.pipeline,
        )
        for index, part in parts.items()
    ]


def _tokens(part: Decoder, rows: int) -> torch.Tensor:
    return torch.empty(rows, part.shape.context, dtype=torch.int64, device="meta")


def _vectors(part: Decoder, rows: int) -> torch.Tensor:
    kind = next(part.parameters()).dtype
    return torch.empty(rows, part.shape.context, part.shape.dim, dtype=kind, device="meta", requires_grad=True)


def _logits(part: Decoder, rows: int, kind: torch.dtype) -> torch.Tensor:
    shape = part.shape
    return torch.empty(rows, shape.context, shape.vocabulary, dtype=kind, device="meta", requires_grad=True)


def traced_stages(
    whole: Decoder, cuts: Sequence[Cut], held: Sequence[int], micro_batch: torch.Tensor, grid: Grid
) -> list[Any]:
    """Torch's stages `held`, cut out of a trace of the whole model, which must fit into memory for that moment.

    The trace works for tokens [sequences, context] of the same shape as `micro_batch` alone.
    """
    points = {f"layers.{cut.first}": SplitPoint.BEGINNING for cut in cuts if not cut.embeds}
    pipe = pipeline(whole, mb_args=(micro_batch,), split_spec=points)
    return [pipe.build_stage(index, grid.device, grid.pipeline) for index in held]
