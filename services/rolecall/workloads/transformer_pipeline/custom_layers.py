"""Custom layers of a job."""

import torch
from torch import nn

from rolecall.kit.builders import build
from rolecall.kit.data_order import derive_seed
from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.model import MakeLayer
from rolecall.workloads.transformer_pipeline.params import Params


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
