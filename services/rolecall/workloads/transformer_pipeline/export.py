# pyright: standard
"""Exports the trained model as a self-contained zip, and a sample of generated text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

from rolecall.kit.export import write_archive
from rolecall.kit.text.corpus import Corpus
from rolecall.kit.text.synthetic import readme_note
from rolecall.kit.worker import WorkerContext
from rolecall.workloads.transformer_pipeline import model
from rolecall.workloads.transformer_pipeline.model import sample_token
from rolecall.workloads.transformer_pipeline.params import Params
from rolecall.workloads.transformer_pipeline.remote import Pipeline

_README = """# An exported transformer-pipeline model

It needs Python 3.10 or later with `torch`, `safetensors` and `tokenizers`. In this folder:

```python
from model import load
model = load(".")
print(model.generate("\\n", tokens=100, temperature=0.8))  # a new text
print(model.perplexity("Some text of your own."))
```

`model.decoder` is a plain `torch.nn.Module` from tokens [b, t] to logits [b, t, vocabulary].
"""
_CPU = torch.device("cpu")
_CUSTOM = "\n`{builder}` builds {what}; the module must be importable.\n"


def export(context: WorkerContext[Params], pipeline: Pipeline, corpus: Corpus) -> None:
    """Write and store `model.zip` and `sample.txt`; called by all workers, done by the first replica.

    The upload, which waits for an unavailable master, follows the last barrier, so that only its rank has to. So no
    collective of all workers may follow this call.
    """
    params, scratch = context.params, context.workdir.scratch
    files = list[Path]()
    if pipeline.grid.replica == 0:
        sample = generate_sample(pipeline, params, corpus) if params.sample.tokens else ""
        if sample and pipeline.grid.rank == 0:
            files.append(scratch / "sample.txt")
            files[0].write_text(sample + "\n")
        files += _write_model(scratch, pipeline, params, corpus)
    dist.barrier()
    for path in files:
        context.artifacts.put(path.name, path)


def generate_sample(pipeline: Pipeline, params: Params, corpus: Corpus) -> str:
    """The prompt and its continuation by the model; a collective of one replica, equal on all its ranks."""
    text = corpus.encode(params.sample.prompt) or corpus.tokens("train")[:1].tolist()
    generator = torch.Generator().manual_seed(params.seed)
    for _ in range(params.sample.tokens):
        seen = text[-params.context :]
        sampled = torch.zeros(1, dtype=torch.int64, device=pipeline.grid.device)

        def choose(_: int, logits: Tensor, seen: list[int] = seen, sampled: Tensor = sampled) -> None:
            sampled.fill_(sample_token(logits[0, len(seen) - 1], params.sample.temperature, generator, corpus.unknown))

        pipeline.forward([_as_micro_batch(seen, params).to(pipeline.grid.device)], choose)
        dist.broadcast(sampled, group=pipeline.grid.pipeline_group, group_src=pipeline.last_rank)
        text.append(int(sampled))
    return corpus.decode(text)


def _as_micro_batch(text: list[int], params: Params) -> Tensor:
    """The tokens as a micro-batch [b, t], padded for traced stages, which need their fixed shape."""
    # The model is causal, so the padding does not affect the tokens before it.
    rows, length = (params.micro_batch, params.context) if params.split == "tracer" else (1, len(text))
    padded = torch.zeros(rows, length, dtype=torch.int64)
    padded[0, : len(text)] = torch.tensor(text)
    return padded


def _write_model(scratch: Path, pipeline: Pipeline, params: Params, corpus: Corpus) -> list[Path]:
    """The first rank writes the weights stage by stage, so that it never holds more than one stage."""
    weights = {path.name: path for path in _collect_files(pipeline, scratch)}
    if pipeline.grid.rank != 0:
        return []
    description = {
        "workload": "transformer-pipeline",
        "vocabulary": corpus.vocabulary_size,
        "context": params.context,
        "shape": pipeline.shape,
        "model": params.model and params.model.model_dump(mode="json"),
        "text": params.text.model_dump(mode="json"),
    }
    note = ""
    if params.model is not None:
        what = "it" if params.whole_model else "its layers"
        note = _CUSTOM.format(builder=params.model.builder, what=what)
    files: dict[str, str | bytes | Path] = {
        "model.py": Path(model.__file__),
        "model.json": json.dumps(description, indent=1, ensure_ascii=False),
        "tokenizer.json": corpus.tokenizer_json,
        "README.md": _README + note + readme_note(params.text),
    }
    path = write_archive(scratch, "model.zip", files | weights)
    for file in weights.values():
        file.unlink()
    return [path]


def _collect_files(pipeline: Pipeline, folder: Path) -> Iterator[Path]:
    """Write a file for each virtual stage on the first rank; the other ranks send their weights."""
    for stage in range(pipeline.stages):
        weights = _collect(pipeline, stage)
        if pipeline.grid.rank == 0:
            path = folder / f"model-{stage + 1:05d}-of-{pipeline.stages:05d}.safetensors"
            save_file(weights, path)
            yield path


def _collect(pipeline: Pipeline, stage: int) -> dict[str, Tensor]:
    """One virtual stage's weights on the first rank, on the CPU; empty on other ranks."""
    owner, grid = pipeline.rank_of(stage), pipeline.grid
    if grid.rank == owner:
        weights = {name: weight.detach() for name, weight in pipeline.model_parts[stage].named_parameters()}
        if owner == 0:
            return {name: weight.cpu() for name, weight in weights.items()}
        shapes = [(name, weight.shape) for name, weight in weights.items()]
        dist.send_object_list([shapes], group=grid.pipeline_group, group_dst=0, device=_CPU)
        for weight in weights.values():
            dist.send(weight.cpu().contiguous(), group=grid.pipeline_group, group_dst=0)
    elif grid.rank == 0:
        sent: list[Any] = [None]
        dist.recv_object_list(sent, group=grid.pipeline_group, group_src=owner, device=_CPU)
        received = {name: torch.empty(shape, dtype=pipeline.dtype) for name, shape in sent[0]}
        for weight in received.values():
            dist.recv(weight, group=grid.pipeline_group, group_src=owner)
        return received
    return {}
