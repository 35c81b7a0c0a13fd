"""The dense layers of a job."""

from rolecall.kit.builders import build
from rolecall.workloads.embedding_ddp.model import DenseLayers, mlp
from rolecall.workloads.embedding_ddp.params import Params


def make_dense(params: Params, inputs: int) -> DenseLayers:
    """Newly initialized dense layers with `inputs` inputs: custom layers or an MLP."""
    if params.model is not None:
        return DenseLayers(build(params.model, inputs))
    return DenseLayers(mlp(inputs, params.hidden, params.dropout))
