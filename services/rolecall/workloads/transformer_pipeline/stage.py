"""A stage holds a part of the layers and trains them in step with the other stages."""

import torch
import torch.distributed as dist

from rolecall.kit.text.corpus import Corpus, open_corpus
from rolecall.runtime.context import WorkerContext
from rolecall.spec.errors import InputError
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.training import Training


def run(context: WorkerContext[Params]) -> None:
    """Read the text, train with the others, and tell the job's result."""
    _require_precision(context.params, context.device)
    corpus = open_corpus(context.params.text, context.cache)
    _require_same_text(corpus)
    Training(context, corpus).play()


def _require_precision(params: Params, device: torch.device) -> None:
    """Raises `InputError` where the GPU does not compute in the type that is asked for."""
    if params.precision == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise InputError(f"{torch.cuda.get_device_name(device)} has no bfloat16; take precision: float32")


def _require_same_text(corpus: Corpus) -> None:
    """Raises `InputError` unless all nodes read the same text: their tokens must mean the same."""
    found: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(found, corpus.fingerprint)
    if len(set(found)) > 1:
        raise InputError("the stages' nodes have different texts under the same paths; give all the same files")
