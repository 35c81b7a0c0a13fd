"""Text that the pipeline writes, token by token, without the model ever being in one place."""

import torch
import torch.distributed as dist
from torch import Tensor

from rolecall.kit.text.corpus import Corpus
from rolecall.workloads.transformer_pipeline.model import draw
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.pipeline import Pipeline


def write_sample(pipeline: Pipeline, params: Params, corpus: Corpus) -> str:
    """The prompt and what the model adds to it; called by all ranks of one replica, who all get the text."""
    text = corpus.encode(params.sample.prompt) or corpus.tokens("train")[:1].tolist()
    generator = torch.Generator().manual_seed(params.seed)
    for _ in range(params.sample.tokens):
        seen = text[-params.context :]
        drawn = torch.zeros(1, dtype=torch.int64, device=pipeline.grid.device)

        def choose(_: int, logits: Tensor, seen: list[int] = seen, drawn: Tensor = drawn) -> None:
            drawn.fill_(draw(logits[0, len(seen) - 1], params.sample.temperature, generator, corpus.unknown))

        pipeline.forward([_framed(seen, params, pipeline.grid.device)], choose)
        dist.broadcast(drawn, group=pipeline.grid.pipeline, group_src=pipeline.last_rank)
        text.append(int(drawn))
    return corpus.decode(text)


def _framed(text: list[int], params: Params, device: torch.device) -> Tensor:
    """The tokens as a micro-batch [b, t]. Traced stages take whole ones alone; what comes after a token changes
    nothing for it.
    """
    rows, length = (params.micro_batch, params.context) if params.split == "tracer" else (1, len(text))
    framed = torch.zeros(rows, length, dtype=torch.int64)
    framed[0, : len(text)] = torch.tensor(text)
    return framed.to(device)
