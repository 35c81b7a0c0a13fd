"""The dense layers that a job asks for."""

from rolecall.kit.builders import build
from rolecall.workloads.embedding_ddp.model import DenseNet, perceptron
from rolecall.workloads.embedding_ddp.params import Params


def make_dense(params: Params, inputs: int) -> DenseNet:
    """Fresh dense layers of `inputs` inputs: the job's own, or a perceptron."""
    if params.model is not None:
        return DenseNet(build(params.model, inputs))
    return DenseNet(perceptron(inputs, params.hidden, params.dropout))
