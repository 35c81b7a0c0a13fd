# pyright: standard
"""Builds what a job's parameters describe: the decoder or a custom model, its cuts into stages, and the optimizer.

Initial weights depend only on the seed and the names of the parameters or the numbers of the layers, not on the cuts.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint

from rolecall.kit import InputError
from rolecall.kit.builders import build, explain_errors
from rolecall.kit.data_order import derive_seed
from rolecall.kit.optimizers import dense_optimizer
from rolecall.kit.pipelining import best_cuts, cut_indices
from rolecall.kit.precision import weight_dtype
from rolecall.kit.structure import (
    child_blocks,
    keep_blocks,
    require_separable,
    require_weights,
    shared_weights,
    structure_of,
)
from rolecall.workloads.transformer_pipeline.model import Cut, Decoder, Layer, MakeLayer, Shape
from rolecall.workloads.transformer_pipeline.params import CutPoint, Model, Params, block_names

_STD = 0.02
_TOKENS = 4
"""Tokens of a sequence in the checks."""


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
    advice = "a layer must accept every number of tokens up to the context"
    with explain_errors(f"{name} fails for {given.shape[1]} tokens", advice):
        before, after = layer(given), layer(changed)
    if not isinstance(before, torch.Tensor) or before.shape != given.shape:
        raise InputError(
            f"{name} returned an incompatible layer: its output must have the shape of its input, [b, t, {params.dim}]"
        )
    if not torch.equal(before[:, 0], after[:, 0]):
        raise InputError(f"{name} returned a layer in which a token sees later ones; use causal attention")
    if not list(layer.parameters()):
        raise InputError(f"{name} returned a layer without weights; each stage needs weights to train")
    if shared := list(shared_weights(layer)):
        raise InputError(f"{name} returned a layer with shared weights: {', '.join(shared)}; give each its own")
    if len(layer.state_dict()) > len(list(layer.parameters())):
        raise InputError(f"{name} returned a layer with persistent buffers; register them with persistent=False")


def balanced_layers(layers: int, stages: int, head: float) -> list[int]:
    """The first layer of each stage but the first, for 2 or more stages of at least one layer, with minimal cost of the
    slowest stage.

    `head` is the cost of the output projection in layers; the last stage gets fewer layers to compensate.
    """
    choices = range(1, layers - stages + 2)
    last = min(choices, key=lambda count: (max(count + head, -(-(layers - count) // (stages - 1))), -count))
    return [(layers - last) * stage // (stages - 1) for stage in range(1, stages)]


def head_cost(shape: Shape, layer: nn.Module | None = None) -> float:
    """The output projection's cost in layers: multiplications per token are equal to the number of weights.

    `layer` is a custom layer.
    """
    if layer is None:
        with torch.device("meta"):
            layer = Layer(shape)
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


class SplitModel(ABC):
    """A model and its cuts into stages. Weights have the same names and initial values with all cuts."""

    shape: dict[str, Any] | None
    """The hyperparameters of the built-in decoder, for exports."""

    split_points: dict[str, SplitPoint]
    """The cuts for torch's tracer; none if the model marks them itself."""

    def __init__(self, blocks: Sequence[str], cuts: Sequence[CutPoint] | None, best: Sequence[int]) -> None:
        """`cuts` are the job's; without them, `best` has the index of the first block of each stage but the first.

        Raises `InputError` for cuts that the model can't have.
        """
        self._blocks = blocks
        firsts = best if cuts is None else cut_indices([(cut.layer, cut.at) for cut in cuts], blocks)
        self._stages = [range(begin, end) for begin, end in pairwise([0, *firsts, len(blocks)])]
        self.split_points = _split_points(cuts or [CutPoint(layer=blocks[first]) for first in firsts], firsts, blocks)

    @abstractmethod
    def widths(self) -> list[int]:
        """The width of each stage's outputs [b, t, width]."""

    @abstractmethod
    def part(self, stage: int) -> nn.Module:
        """The part of the model in `stage`, on the job's device."""

    @abstractmethod
    def whole(self) -> nn.Module:
        """The whole model, on the job's device."""


def _split_points(cuts: Sequence[CutPoint], firsts: Sequence[int], blocks: Sequence[str]) -> dict[str, SplitPoint]:
    points: dict[str, SplitPoint] = {}
    for cut, first in zip(cuts, firsts, strict=True):
        # Torch accepts one point for each module. The end of a block is also the beginning of the next one.
        if cut.at == "end" and cut.layer not in points:
            points[cut.layer] = SplitPoint.END
        else:
            points[blocks[first]] = SplitPoint.BEGINNING
    return points


class SplitDecoder(SplitModel):
    """The built-in decoder, possibly with custom layers. A rank builds only its own parts."""

    def __init__(self, params: Params, vocabulary: int, stages: int, device: torch.device) -> None:
        """Raises `InputError` if custom layers can't run in a stage."""
        self._params, self._device = params, device
        self._shape = decoder_shape(params, vocabulary)
        self.shape = asdict(self._shape)
        self._make_layer = custom_layers(params)
        best: list[int] = []
        if params.cuts is None:
            # Not on the meta device, where custom layers that compute with values of tensors can't be built.
            custom = self._make_layer(0) if self._make_layer else None
            firsts = balanced_layers(params.layers, stages, head_cost(self._shape, custom))
            best = [1 + first for first in firsts]  # after the embedding
        super().__init__(block_names(params.layers), params.named_cuts, best)

    def widths(self) -> list[int]:
        return [self._shape.dim] * (len(self._stages) - 1) + [self._shape.vocabulary]

    def part(self, stage: int) -> Decoder:
        blocks, layers = self._stages[stage], self._shape.layers
        cut = Cut(
            first=max(0, blocks.start - 1),
            end=min(layers, blocks.stop - 1),
            embeds=blocks.start == 0,
            predicts=blocks.stop == layers + 2,
        )
        part = self._build(cut)
        part.recompute = self._params.activation_checkpointing
        return part

    def whole(self) -> Decoder:
        return self._build(None)

    def _build(self, cut: Cut | None) -> Decoder:
        return build_decoder(
            self._shape,
            cut,
            seed=self._params.seed,
            dtype=weight_dtype(self._params.precision),
            device=self._device,
            make_layer=self._make_layer,
        )


def check_cuts(params: Params, own: Model) -> None:
    """Raises `InputError` for cuts that a custom whole model can't have, before it has weights.

    A model that can't be built without weights is checked only when it is built with them.
    """
    # The names of blocks are those for any vocabulary, which is known when the text has been read.
    model = structure_of(own, params.text.vocabulary, params.context)
    if model is not None:
        cut_indices(params.cut_points, child_blocks(_require_module(model, own)))


def _require_module(built: object, own: Model) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise InputError(f"{own.builder} returned a value of the type {type(built).__name__}, not a torch module")
    return built


class SplitCustomModel(SplitModel):
    """A custom whole model, which each rank builds temporarily on its CPU. Initial weights depend only on the seed."""

    def __init__(self, params: Params, own: Model, vocabulary: int, stages: int, device: torch.device) -> None:
        """Raises `InputError` if the model can't be built or can't be cut."""
        self._name, self._device = own.builder, device
        self.shape = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(params.seed)
            built = build(own, vocabulary, params.context)
        model = _require_module(built, own)
        require_weights(model, own.builder)
        self._model = model.to(weight_dtype(params.precision))
        require_separable(self._model, own.builder)
        self._tokens = torch.arange(2 * min(_TOKENS, params.context)).view(2, -1) % vocabulary
        self._logits = self._whole_logits(vocabulary)
        blocks = child_blocks(self._model)
        if params.cuts == "pipe_split":  # The blocks are of no use, and can be fewer than the stages.
            super().__init__(blocks, None, [])
            self.split_points = {}
            return
        if len(blocks) < stages:
            raise InputError(
                f"{own.builder} returned a model of {len(blocks)} blocks for {stages} virtual stages, which each need "
                f"one; use fewer stages, or more children: {', '.join(blocks)}"
            )
        costs = [float(sum(map(_multiplications, self._model.get_submodule(block).modules()))) for block in blocks]
        super().__init__(blocks, params.named_cuts, best_cuts([costs] * stages))
        self._require_weights()

    @torch.no_grad()
    def widths(self) -> list[int]:
        """As `SplitModel.widths`; raises `InputError` unless the stages, one after the other, are the whole model."""
        x, widths = self._tokens, list[int]()
        for stage in range(len(self._stages)):
            x = self._outputs(stage, x)
            widths.append(x.shape[-1])
        if not _agree(x, self._logits):
            raise InputError(
                f"{self._name} returned a model whose stages, one after the other, give other logits than the whole "
                "model; pass everything from block to block in one tensor, in the order of the children"
            )
        return widths

    def part(self, stage: int) -> nn.Module:
        return self._keep(stage).to(self._device)

    @torch.no_grad()
    def whole(self) -> nn.Module:
        """As `SplitModel.whole`; raises `InputError` if the model has dropout, which a trace can't disable."""
        with torch.random.fork_rng(devices=[]):
            trained = self._model(self._tokens)
        if not _agree(trained, self._logits):
            raise InputError(
                f"{self._name} returned a model with dropout, which split: tracer can't disable for evaluation and "
                "samples; use split: manual, or build the model without dropout"
            )
        return self._model.to(self._device)

    def _keep(self, stage: int) -> nn.Module:
        return keep_blocks(self._model, self._names(stage))

    def _names(self, stage: int) -> list[str]:
        return [self._blocks[block] for block in self._stages[stage]]

    def _require_weights(self) -> None:
        for stage in range(len(self._stages)):
            if not list(self._keep(stage).parameters()):
                names = ", ".join(self._names(stage))
                raise InputError(f"cuts: stage {stage} has only {names}, without weights to train; choose other cuts")

    @torch.no_grad()
    def _whole_logits(self, vocabulary: int) -> Tensor:
        self._model.eval()
        try:
            with explain_errors(f"{self._name} returned a model that fails for tokens [b, t]"):
                logits = self._model(self._tokens)
        finally:
            self._model.train()
        if not isinstance(logits, Tensor) or logits.shape != (*self._tokens.shape, vocabulary):
            raise InputError(
                f"{self._name} returned an incompatible model: for tokens [b, t], it must return logits "
                f"[b, t, {vocabulary}]"
            )
        if logits.isnan().any():
            raise InputError(f"{self._name} returned a model whose logits are NaN; check its initial weights and masks")
        return logits

    def _outputs(self, stage: int, x: Tensor) -> Tensor:
        part = self._keep(stage).eval()
        explanation = (
            f"{self._name} returned a model that can't run with only {', '.join(self._names(stage))}; its forward must "
            "skip children that are None or missing, and return one tensor [b, t, width]"
        )
        try:
            with explain_errors(explanation):
                outputs = part(x)
        finally:
            part.train()
        if not isinstance(outputs, Tensor) or outputs.shape[:-1] != self._tokens.shape:
            raise InputError(explanation)
        return outputs


def _agree(one: Tensor, other: Tensor) -> bool:
    """True if they differ at most in rounding: torch has faster attention for evaluation, which rounds differently.

    Rounding errors grow with the scale of all logits. Their median ignores those that mask tokens, such as -1e9.
    """
    scale = other[other.isfinite()].abs().median().nan_to_num()  # NaN if none is finite
    return torch.allclose(one, other, rtol=1e-4, atol=1e-4 * scale.item())


def _multiplications(module: nn.Module) -> int:
    """The module's own multiplications per token: as many as weights, none for looking up embeddings."""
    return 0 if isinstance(module, nn.Embedding) else sum(weight.numel() for weight in module.parameters(recurse=False))


def make_optimizer(params: Params, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer, with weight decay for matrices only, not for norms and biases."""
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    vectors = [parameter for parameter in parameters if parameter.ndim == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return dense_optimizer(params.optimizer).build([group for group in groups if group["params"]])
