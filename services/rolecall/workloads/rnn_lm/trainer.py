"""A trainer reads its streams of the text and trains the LSTM in DDP, between embedding and decoder on the servers."""

import torch
from torch.distributed import rpc
from torch.futures import Future

from rolecall.kit.precision import require_precision
from rolecall.kit.same_input import require_same_in_group
from rolecall.kit.text.corpus import Corpus, open_corpus
from rolecall.runtime.context import WorkerContext, worker_name
from rolecall.runtime.remote import Mailbox
from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.rnn_lm.layers import Shard, Shards, make_shards
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.training import Training

_shards: Mailbox[list[Shard], list[Shard]] = Mailbox()


def run(context: WorkerContext[Params]) -> None:
    """Read the text, meet the shards that the first trainer has made, train; the first tells the result."""
    require_precision(context.params.precision, context.device)
    corpus = open_corpus(context.params.text, context.cache)
    require_same_in_group(corpus.fingerprint, Role.TRAINER, "texts")
    shards = _make_and_share(context, corpus) if context.role_rank == 0 else _shards.serve(lambda shards: shards)
    Training(context, corpus, Shards(shards)).play()


def _make_and_share(context: WorkerContext[Params], corpus: Corpus) -> list[Shard]:
    servers, trainers = context.count(Role.PARAMETER_SERVER), context.count(Role.TRAINER)
    vocabulary = corpus.vocabulary_size
    if vocabulary < servers:
        raise InputError(
            f"the text has {vocabulary} different tokens for {servers} parameter servers; take at most {vocabulary}"
        )
    context.report.event(f"{vocabulary} different tokens over {servers} parameter server(s)")
    shards = make_shards(context.params, servers, vocabulary, trainers)
    others = [worker_name(Role.TRAINER, rank) for rank in range(1, trainers)]
    torch.futures.wait_all([rpc.rpc_async(name, meet_shards, args=(shards,)) for name in others])
    return shards


@rpc.functions.async_execution
def meet_shards(shards: list[Shard]) -> Future[list[Shard]]:
    """Called by the first trainer: train between these."""
    return _shards.post(shards)
