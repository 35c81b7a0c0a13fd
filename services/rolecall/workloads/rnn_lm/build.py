# pyright: standard
"""Builds what a job's parameters describe: the recurrent part and its first state, the modules on the servers, the
model with its updates.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rolecall.kit import InputError
from rolecall.kit.builders import build, explain_errors
from rolecall.kit.data_order import derive_seed
from rolecall.kit.optimizers import dense_optimizer
from rolecall.kit.parameter_server import (
    DecoderShard,
    OverlappedUpdates,
    ShardedModule,
    Shards,
    TutorialProtocol,
    Uniform,
    UpdateProtocol,
    sharded_embedding,
)
from rolecall.kit.precision import weight_dtype
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.rnn_lm.model import Recurrent, State
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.remote import Decoder, EmbeddingTable, RNNModel, ShardedModel, TutorialModel


def make_recurrent(params: Params) -> nn.Module:
    """A newly initialized recurrent part: a custom module or an LSTM.

    Raises `InputError` if the custom module does not return what the decoder needs.
    """
    if params.model is None:
        lstm = Recurrent(params.embedding_dim, params.hidden_dim, params.layers, params.dropout)
        if params.protocol == "tutorial":
            lstm.dropout.p = 0.0  # the servers drop values of its inputs and outputs
        return lstm
    own = build(params.model, params.embedding_dim, params.hidden_dim)
    with torch.no_grad(), explain_errors(f"{params.model.builder} fails for vectors [1, 1, {params.embedding_dim}]"):
        given = own(torch.zeros(1, 1, params.embedding_dim), None)
    match given:
        case (Tensor() as hidden, tuple() as state):
            fits = hidden.shape == (1, 1, params.hidden_dim) and all(isinstance(one, Tensor) for one in state)
        case _:
            fits = False
    if not fits:
        raise InputError(
            f"{params.model.builder} returned an incompatible module: called with vectors "
            f"[1, 1, {params.embedding_dim}] and None, it must return hidden states [1, 1, {params.hidden_dim}] "
            "and a tuple of tensors"
        )
    return own


def initial_state(params: Params, streams: slice) -> State | None:
    """The LSTM's random state before the first step, 2 × [layers, b, hidden_dim] for b streams; None if it is zero.

    It is drawn for all streams, so that each has the same one for any number of trainers.
    """
    if params.initial_state == "zero":
        return None
    size = (2, params.layers, params.batch_size, params.hidden_dim)
    generator = torch.Generator().manual_seed(derive_seed(params.seed, 2))
    drawn = torch.randn(size, generator=generator, dtype=weight_dtype(params.precision))
    return tuple(drawn[:, :, streams].contiguous())


def sharded_vocabulary(params: Params, vocabulary: int, servers: int) -> list[ShardedModule]:
    """Embedding and decoder of `vocabulary` tokens. A single server holds both.

    With several servers, a third holds the embedding; the decoder gets more, because every token uses all its rows.
    """
    first = max(1, servers // 3) if servers > 1 else 0
    embedding, decoder = (range(first), range(first, servers)) if first else (range(1), range(1))
    optimizer = dense_optimizer(params.optimizer)
    if params.protocol == "tutorial":
        return [
            ShardedModule("embedding", vocabulary, partial(EmbeddingTable, params), optimizer, embedding),
            ShardedModule("decoder", vocabulary, partial(Decoder, params), optimizer, decoder),
        ]
    table = sharded_embedding(
        "embedding",
        vocabulary,
        dim=params.embedding_dim,
        initializer=Uniform(derive_seed(params.seed, 0), params.init_range),
        optimizer=optimizer,
        servers=embedding,
        dtype=weight_dtype(params.precision),
        sparse=False,  # every optimizer supports dense gradients
    )
    make_decoder = partial(
        DecoderShard,
        width=params.hidden_dim,
        initializer=Uniform(derive_seed(params.seed, 1), params.init_range),
        precision=params.precision,
    )
    return [table, ShardedModule("decoder", vocabulary, make_decoder, optimizer, decoder)]


@dataclass(frozen=True, slots=True)
class Model:
    """The model of a trainer, and the updates of all its weights."""

    train: ShardedModel | TutorialModel
    """Gives the losses of a segment: (`Segment`, state) to the loss of each token and the next state."""
    evaluate: ShardedModel | TutorialModel
    """The same with the same weights, but without DDP, which would synchronize buffers."""
    protocol: UpdateProtocol


def make_model(context: WorkerContext[Params], shards: Shards, recurrent: nn.Module) -> Model:
    """The model in the form of the job's protocol. `recurrent` is its recurrent part."""
    make = _tutorial_model if context.params.protocol == "tutorial" else _sharded_model
    return make(context, shards, recurrent)


def _sharded_model(context: WorkerContext[Params], shards: Shards, recurrent: nn.Module) -> Model:
    params = context.params
    decoder, embedding = (Shards(shards.of(name)) for name in ("decoder", "embedding"))
    local = dense_optimizer(params.optimizer).build(recurrent.parameters())
    updates = OverlappedUpdates(decoder, embedding, context.role_rank, local, max_norm=params.max_grad_norm)
    make = partial(ShardedModel, params, shards, device=context.device, trainer=context.role_rank, send=updates.send)
    return Model(make(recurrent=DistributedDataParallel(recurrent)), make(recurrent=recurrent), updates)


def _tutorial_model(context: WorkerContext[Params], shards: Shards, recurrent: nn.Module) -> Model:
    params, tables, decoders = context.params, shards.modules("embedding"), shards.modules("decoder")
    trained, evaluated = (
        RNNModel(tables, one, decoders, device=context.device)
        for one in (DistributedDataParallel(recurrent), recurrent)
    )
    optimizer = dense_optimizer(params.optimizer)
    protocol = TutorialProtocol(trained.parameter_rrefs(), optimizer, in_step=True)
    return Model(TutorialModel(params, trained), TutorialModel(params, evaluated), protocol)
