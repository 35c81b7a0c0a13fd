"""A trainer trains the LSTM in DDP on its streams of the text; embedding and decoder are on the servers."""

from rolecall.kit import InputError, Role, counted
from rolecall.kit.parameter_server import share_shards
from rolecall.kit.same_input import require_same_in_group
from rolecall.kit.text.corpus import open_corpus
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.rnn_lm.build import sharded_vocabulary
from rolecall.workloads.rnn_lm.params import Params
from rolecall.workloads.rnn_lm.training import Training


def run(context: WorkerContext[Params]) -> None:
    """Read the text, share the shards with the other trainers, and train; the first trainer reports the result."""
    corpus = open_corpus(context.params.text, context.cache)
    require_same_in_group(corpus.fingerprint, Role.TRAINER, "texts")
    servers, vocabulary = context.count(Role.PARAMETER_SERVER), corpus.vocabulary_size
    if vocabulary < servers:
        raise InputError(
            f"the text has {vocabulary} different tokens for {servers} parameter servers; use at most {vocabulary}"
        )
    if context.role_rank == 0:
        context.report.event(f"{counted(vocabulary, 'different token')} on {counted(servers, 'parameter server')}")
    shards = share_shards(context, sharded_vocabulary(context.params, vocabulary, servers))
    Training(context, corpus, shards).play()
