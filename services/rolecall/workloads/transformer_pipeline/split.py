"""Models that are cut into virtual stages: what they have in common, and the built-in decoder."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import SplitPoint

from rolecall.kit.pipelining import cut_indices
from rolecall.kit.precision import weight_dtype
from rolecall.workloads.transformer_pipeline.build import (
    build_decoder,
    custom_layers,
    decoder_shape,
    head_cost,
    layer_cuts,
)
from rolecall.workloads.transformer_pipeline.model import Cut, Decoder
from rolecall.workloads.transformer_pipeline.params import CutPoint, Params, block_names


class SplitModel(ABC):
    """A model and its cuts into stages. Weights have the same names and initial values with all cuts."""

    shape: dict[str, Any] | None
    """The hyperparameters of the built-in decoder, for exports."""

    def __init__(self, blocks: Sequence[str], cuts: Sequence[CutPoint] | None, best: Sequence[int]) -> None:
        """`cuts` are the job's; without them, `best` has the index of the first block of each stage but the first.

        Raises `InputError` for cuts that the model can't have.
        """
        self._blocks = blocks
        firsts = best if cuts is None else cut_indices([(cut.layer, cut.at) for cut in cuts], blocks)
        self._stages = [range(begin, end) for begin, end in pairwise([0, *firsts, len(blocks)])]
        self.split_points = _split_points(cuts or [CutPoint(layer=blocks[first]) for first in firsts], firsts, blocks)
        """The cuts for torch's tracer."""

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
            balanced = layer_cuts(params.layers, stages, head_cost(self._shape, self._make_layer))
            best = [1 + cut.first for cut in balanced[1:]]  # after the embedding
        super().__init__(block_names(params.layers), params.cuts, best)

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
