"""Builds what a job's parameters describe: the decoder's shape, custom layers, cuts, virtual stages and the optimizer.

Initial weights depend only on the seed and the names of the parameters or the numbers of the layers, not on the cuts.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline

from rolecall.kit.builders import build
from rolecall.kit.data_order import derive_seed
from rolecall.kit.grid import Grid
from rolecall.kit.optimizers import dense_optimizer
from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.model import Cut, Decoder, Layer, MakeLayer, Shape
from rolecall.workloads.transformer_pipeline.params import Params

_STD = 0.02


def decoder_shape(params: Params, vocabulary: int) -> Shape:
    return Shape(
        vocabulary=vocabulary,
        context=params.context,
        layers=params.layers,
        dim=params.dim,
        heads=params.heads,
        hidden=params.hidden or 4 * params.dim,
        positions=params.positions,
        dropout=params.dropout,
    )


def custom_layers(params: Params) -> MakeLayer | None:
    """A function that builds the job's custom layers. Initial weights depend only on the seed and the layer's number.

    None without custom layers; raises `InputError` if they can't run in a stage.
    """
    own = params.model
    if own is None:
        return None

    def make(index: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(params.seed, index) % 2**63)
            return build(own, params.dim, params.context)

    _require_fit(make(0), params, own.builder)
    return make


@torch.no_grad()
def _require_fit(layer: nn.Module, params: Params, name: str) -> None:
    given = torch.randn(1, 2, params.dim, generator=torch.Generator().manual_seed(0))
    changed = given.clone()
    changed[:, -1] += 1.0
    layer.eval()
    before, after = layer(given), layer(changed)
    if not isinstance(before, torch.Tensor) or before.shape != given.shape:
        raise InputError(
            f"{name} returned an incompatible layer: its output must have the shape of its input, [b, t, {params.dim}]"
        )
    if not torch.equal(before[:, 0], after[:, 0]):
        raise InputError(f"{name} returned a layer in which a token sees later ones; use causal attention")
    if not list(layer.parameters()):
        raise InputError(f"{name} returned a layer without weights; each stage needs weights to train")
    if len(layer.state_dict()) > len(list(layer.parameters())):
        raise InputError(f"{name} returned a layer with persistent buffers; register them with persistent=False")


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


def build_decoder(
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
    parts: Mapping[int, nn.Module],
    widths: Sequence[int],
    micro_batch: tuple[int, int],
    grid: Grid,
) -> list[PipelineStage]:
    """Torch's stages for this rank's `parts`, keyed by stage index; a micro-batch is [sequences, context].

    Passes input and output shapes explicitly; `widths` has the width of every stage's outputs. Otherwise torch infers
    shapes by a forward pass, which in some versions (2.11) advances the random state for dropout, so that a resumed
    training would differ.
    """
    stages: list[PipelineStage] = []
    for index, part in parts.items():
        dtype = next(part.parameters()).dtype
        inputs = torch.empty(micro_batch, dtype=torch.int64, device="meta")
        if index > 0:
            inputs = _activations(micro_batch, widths[index - 1], dtype)
        stage = PipelineStage(
            part,
            index,
            len(widths),
            grid.device,
            input_args=inputs,
            output_args=_activations(micro_batch, widths[index], dtype),
            group=grid.pipeline_group,
        )
        stages.append(stage)
    return stages


def _activations(micro_batch: tuple[int, int], width: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(*micro_batch, width, dtype=dtype, device="meta", requires_grad=True)


def traced_stages(
    whole: nn.Module,
    points: dict[str, SplitPoint],
    stage_indices: Sequence[int],
    micro_batch: tuple[int, int],
    grid: Grid,
) -> tuple[list[Any], list[int]]:
    """Torch's stages `stage_indices` from a trace of the whole model, and the width of every stage's outputs.

    The whole model must temporarily fit in memory. The trace is specialized to tokens of the shape `micro_batch`.
    Raises `InputError` if the trace has other data than one tensor [sequences, context, width] between stages.
    """
    tokens = torch.zeros(micro_batch, dtype=torch.int64, device=grid.device)
    pipe = pipeline(whole, mb_args=(tokens,), split_spec=points)
    widths = [_traced_width(pipe.get_stage_module(index), micro_batch) for index in range(pipe.num_stages)]
    return [pipe.build_stage(index, grid.device, grid.pipeline_group) for index in stage_indices], widths


def _traced_width(stage: Any, micro_batch: tuple[int, int]) -> int:
    outputs = next(node for node in stage.graph.nodes if node.op == "output").all_input_nodes
    inputs = [node for node in stage.graph.nodes if node.op == "placeholder"]
    shape = outputs[0].meta["val"].shape
    if len(inputs) != 1 or len(outputs) != 1 or tuple(shape[:-1]) != micro_batch:
        raise InputError(
            "cuts: split: tracer needs one tensor [b, t, width] between stages; skip connections across a cut are not "
            "supported: choose other cuts"
        )
    return shape[-1]


def make_optimizer(params: Params, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer, with weight decay for matrices only, not for norms and biases."""
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return dense_optimizer(params.optimizer).build([group for group in groups if group["params"]])
