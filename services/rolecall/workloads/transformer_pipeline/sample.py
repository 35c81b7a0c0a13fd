"""Generates text with the pipeline, without gathering the model on one rank."""

import torch
import torch.distributed as dist
from torch import Tensor

from rolecall.kit.text.corpus import Corpus
from rolecall.workloads.transformer_pipeline.model import sample_token
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.pipeline import Pipeline


def write_sample(pipeline: Pipeline, params: Params, corpus: Corpus) -> str:
    """The prompt and its continuation by the model; a collective of one replica, equal on all its ranks."""
    text = corpus.encode(params.sample.prompt) or corpus.tokens("train")[:1].tolist()
    generator = torch.Generator().manual_seed(params.seed)
    for _ in range(params.sample.tokens):
        seen = text[-params.context :]
        sampled = torch.zeros(1, dtype=torch.int64, device=pipeline.grid.device)

        def choose(_: int, logits: Tensor, seen: list[int] = seen, sampled: Tensor = sampled) -> None:
            sampled.fill_(sample_token(logits[0, len(seen) - 1], params.sample.temperature, generator, corpus.unknown))

        pipeline.forward([_as_micro_batch(seen, params, pipeline.grid.device)], choose)
        dist.broadcast(sampled, group=pipeline.grid.pipeline_group, group_src=pipeline.last_rank)
        text.append(int(sampled))
    return corpus.decode(text)


def _as_micro_batch(text: list[int], params: Params, device: torch.device) -> Tensor:
    """The tokens as a micro-batch [b, t], padded for traced stages, which need their fixed shape."""
    # The model is causal, so the padding does not affect the tokens before it.
    rows, length = (params.micro_batch, params.context) if params.split == "tracer" else (1, len(text))
    padded = torch.zeros(rows, length, dtype=torch.int64)
    padded[0, : len(text)] = torch.tensor(text)
    return padded.to(device)
