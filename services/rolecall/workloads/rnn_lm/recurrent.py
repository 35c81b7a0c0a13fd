"""The recurrent part of a job's model."""

import torch
from torch import Tensor, nn

from rolecall.kit.builders import build
from rolecall.spec.errors import InputError
from rolecall.workloads.rnn_lm.model import Recurrent
from rolecall.workloads.rnn_lm.params import Params


def make_recurrent(params: Params) -> nn.Module:
    """A newly initialized recurrent part: a custom module or an LSTM.

    Raises `InputError` if the custom module does not return what the decoder needs.
    """
    if params.model is None:
        return Recurrent(params.embedding_dim, params.hidden_dim, params.layers, params.dropout)
    own = build(params.model, params.embedding_dim, params.hidden_dim)
    with torch.no_grad():
        given = own(torch.zeros(1, 1, params.embedding_dim), None)
    if not _fits(given, params.hidden_dim):
        raise InputError(
            f"{params.model.builder} returned an incompatible module: called with vectors "
            f"[1, 1, {params.embedding_dim}] and None, it must return hidden states [1, 1, {params.hidden_dim}] "
            "and a tuple of tensors"
        )
    return own


def _fits(given: object, hidden_dim: int) -> bool:
    match given:
        case (Tensor() as hidden, tuple() as state):
            return hidden.shape == (1, 1, hidden_dim) and all(isinstance(one, Tensor) for one in state)
        case _:
            return False
