"""A stage holds part of the layers and trains them in lockstep with the other stages."""

from rolecall.kit import Role
from rolecall.kit.same_input import require_same_in_group
from rolecall.kit.text.corpus import open_corpus
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.training import Training


def run(context: WorkerContext[Params]) -> None:
    """Read the text and train; the first stage reports the result."""
    corpus = open_corpus(context.params.text, context.cache)
    require_same_in_group(corpus.fingerprint, Role.STAGE, "texts")
    Training(context, corpus).play()
