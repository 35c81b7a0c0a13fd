"""A stage holds a part of the layers and trains them in step with the other stages."""

import torch.distributed as dist

from rolecall.kit.precision import require_precision
from rolecall.kit.text.corpus import Corpus, open_corpus
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.training import Training


def run(context: WorkerContext[Params]) -> None:
    """Read the text, train with the others, and tell the job's result."""
    require_precision(context.params.precision, context.device)
    corpus = open_corpus(context.params.text, context.cache)
    _require_same_text(corpus)
    Training(context, corpus).play()


def _require_same_text(corpus: Corpus) -> None:
    """Raises `InputError` unless all nodes read the same text: their tokens must mean the same."""
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, corpus.fingerprint)
    if len(set(found)) > 1:
        raise InputError("the stages' nodes have different texts under the same paths; give all the same files")
