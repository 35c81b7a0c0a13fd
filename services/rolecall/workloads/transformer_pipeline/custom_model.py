"""Custom whole models, which are cut between their children.

As in PyTorch's tutorial, a stage has the whole model without the blocks of other stages: `forward` skips parts that are
None, and entries that are missing from a `ModuleDict`.
"""

import copy
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rolecall.kit.builders import build, shorten_error
from rolecall.kit.pipelining import best_cuts, cut_indices
from rolecall.kit.precision import weight_dtype
from rolecall.kit.structure import require_weights, structure_of
from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.params import Model, Params
from rolecall.workloads.transformer_pipeline.split import SplitModel

_TOKENS = 4
"""Tokens of a sequence in the checks."""


def blocks_of(model: nn.Module) -> tuple[str, ...]:
    """The names of the model's children in order; of a `ModuleDict`, of its entries, such as `layers.0`."""
    return tuple(
        f"{name}.{entry}" if entry else name
        for name, child in model.named_children()
        for entry in (child if isinstance(child, nn.ModuleDict) else ("",))
    )


def keep_blocks(model: nn.Module, kept: Collection[str]) -> nn.Module:
    """A copy of the model without its other blocks; the copy shares the kept ones with the model."""
    children = dict[str, nn.Module | None]()
    for name, child in model._modules.items():
        if isinstance(child, nn.ModuleDict):
            entries = {entry: block for entry, block in child.items() if f"{name}.{entry}" in kept}
            children[name] = _with_children(child, entries)
        else:
            children[name] = child if name in kept else None
    return _with_children(model, children)


def _with_children(module: nn.Module, children: dict[str, Any]) -> nn.Module:
    made = copy.copy(module)
    # `copy` shares these dictionaries: a hook of one part would run in the others, too.
    made.__dict__ |= {name: value.copy() for name, value in vars(module).items() if isinstance(value, dict)}
    made._modules = children
    return made


def check_cuts(params: Params, own: Model) -> None:
    """Raises `InputError` for cuts that a custom whole model can't have, before it has weights.

    A model that can't be built without weights is checked only when it is built with them.
    """
    # The names of blocks are those for any vocabulary, which is known when the text has been read.
    model = structure_of(own, params.text.vocabulary, params.context)
    if model is not None:
        cut_indices(params.cut_points, blocks_of(_require_module(model, own)))


def _require_module(built: object, own: Model) -> nn.Module:
    if not isinstance(built, nn.Module):
        raise InputError(f"{own.builder} returned a {type(built).__name__}, not a torch module")
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
        _require_separable(self._model, own.builder)
        blocks = blocks_of(self._model)
        if len(blocks) < stages:
            raise InputError(
                f"{own.builder} returned a model of {len(blocks)} blocks for {stages} virtual stages, which each need "
                f"one; use fewer stages, or more children: {', '.join(blocks)}"
            )
        super().__init__(blocks, params.cuts, best_cuts([self._costs(blocks)] * stages))
        self._require_weights()
        self._tokens = torch.arange(2 * min(_TOKENS, params.context)).view(2, -1) % vocabulary
        self._logits = self._whole_logits(vocabulary)

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

    def _costs(self, blocks: tuple[str, ...]) -> list[float]:
        """Multiplications per token: as many as weights, none for looking up embeddings."""
        return [float(sum(map(_multiplications, self._model.get_submodule(block).modules()))) for block in blocks]

    def _require_weights(self) -> None:
        for stage in range(len(self._stages)):
            if not list(self._keep(stage).parameters()):
                names = ", ".join(self._names(stage))
                raise InputError(f"cuts: stage {stage} has only {names}, without weights to train; choose other cuts")

    @torch.no_grad()
    def _whole_logits(self, vocabulary: int) -> Tensor:
        self._model.eval()
        try:
            logits = self._model(self._tokens)
        except Exception as error:  # custom code may raise anything
            raise InputError(f"{self._name} returned a model that fails for tokens [b, t]: {_text(error)}") from error
        finally:
            self._model.train()
        if not isinstance(logits, Tensor) or logits.shape != (*self._tokens.shape, vocabulary):
            raise InputError(
                f"{self._name} returned an incompatible model: for tokens [b, t], it must return logits "
                f"[b, t, {vocabulary}]"
            )
        return logits

    def _outputs(self, stage: int, x: Tensor) -> Tensor:
        part = self._keep(stage).eval()
        explanation = (
            f"{self._name} returned a model that can't run with only {', '.join(self._names(stage))}; its forward must "
            "skip children that are None or missing, and return one tensor [b, t, width]"
        )
        try:
            outputs = part(x)
        except Exception as error:  # custom code may raise anything
            raise InputError(f"{explanation}: {_text(error)}") from error
        finally:
            part.train()
        if not isinstance(outputs, Tensor) or outputs.shape[:-1] != self._tokens.shape:
            raise InputError(explanation)
        return outputs


def _agree(one: Tensor, other: Tensor) -> bool:
    """True if they differ at most in rounding: torch has faster attention for evaluation, which rounds differently."""
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def _text(error: Exception) -> str:
    return shorten_error(f"{type(error).__name__}: {error}")


def _multiplications(module: nn.Module) -> int:
    return 0 if isinstance(module, nn.Embedding) else sum(weight.numel() for weight in module.parameters(recurse=False))


def _require_separable(model: nn.Module, name: str) -> None:
    """Raises `InputError` for weights that belong to no block or to several, and for state that no checkpoint has."""
    reason = ""
    if outside := [weight for weight, _ in model.named_parameters(recurse=False)]:
        reason = f"weights outside its children: {', '.join(outside)}; add a child"
    elif shared := list(_shared_weights(model)):
        reason = f"shared weights: {', '.join(shared)}; stages can't share weights"
    elif len(model.state_dict()) > len(list(model.parameters())):
        reason = "persistent buffers; register them with persistent=False"
    if reason:
        raise InputError(f"{name} returned a model with {reason}")


def _shared_weights(model: nn.Module) -> Iterator[str]:
    first: dict[nn.Parameter, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight in first:
            yield f"{first[weight]} = {name}"
        first.setdefault(weight, name)
