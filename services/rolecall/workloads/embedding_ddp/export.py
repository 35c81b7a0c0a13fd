"""Exports the trained model as a self-contained zip: plain PyTorch code, safetensors and JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from rolecall.kit.export import write_archive
from rolecall.kit.tables import encoding
from rolecall.kit.tables.params import Target
from rolecall.workloads.embedding_ddp import model
from rolecall.workloads.embedding_ddp.build import Dataset
from rolecall.workloads.embedding_ddp.params import Params

_DTYPES = {torch.float32: "F32", torch.float64: "F64"}
_README = """# An exported embedding-ddp model

It needs Python 3.10 or later with `torch`, `numpy` and `safetensors`. In this folder:

```python
from model import load
model = load(".")
model.predict([{example}])  # {prediction}
```
"""
_PREDICTIONS: dict[Target, str] = {
    "binary": "[rows]: the probability that each row's `{label}` is positive",
    "classes": "[rows, classes]: the probability of each class of `{label}`, in the order of `model.classes`",
    "number": "[rows]: each row's `{label}`",
}
_CUSTOM_LAYERS = "\n`{builder}` builds its dense layers; the module must be importable.\n"


def write_export(
    folder: Path, dataset: Dataset, params: Params, blocks: Iterable[torch.Tensor], dense: nn.Module
) -> Path:
    """Write `model.zip` to `folder` and return its path.

    `blocks` has the table's rows in order, [b, dim] each, so that the whole table is never in memory.
    """
    weights = {f"dense.{name}": value for name, value in dense.state_dict().items()}
    tensors = folder / "model.safetensors"
    write_weights(tensors, (dataset.table.columns.num_ids, params.embedding_dim), blocks, weights)
    description = json.dumps(_description(dataset, params), indent=1, ensure_ascii=False)
    files: dict[str, str | Path] = {
        "README.md": _readme(dataset, params),
        "model.json": description,
        # In the archive the two files are in the same folder.
        "model.py": Path(model.__file__).read_text().replace(encoding.__name__, "encoding"),
        "encoding.py": Path(encoding.__file__),
        "model.safetensors": tensors,
    }
    path = write_archive(folder, "model.zip", files)
    tensors.unlink()
    return path


def _description(dataset: Dataset, params: Params) -> dict[str, object]:
    return {
        "workload": "embedding-ddp",
        "label": params.data.label.model_dump(mode="json"),
        "target": params.target,
        "classes": dataset.table.classes,
        "pooling": params.pooling,
        "hidden": params.hidden,
        "dropout": params.dropout,
        "model": params.model and params.model.model_dump(),
        "missing": params.data.missing,
        **asdict(dataset.table.columns),
    }


def _readme(dataset: Dataset, params: Params) -> str:
    names = dict.fromkeys(column.name for column in (*dataset.table.columns.ids, *dataset.table.columns.numbers))
    example = "{" + ", ".join(f'"{name}": None' for name in names) + "}"
    text = _README.replace("{example}", example).replace("{prediction}", _PREDICTIONS[params.target])
    text = text.replace("{label}", params.data.label.column)
    return text + (_CUSTOM_LAYERS.replace("{builder}", params.model.builder) if params.model else "")


def write_weights(
    path: Path, table: tuple[int, int], blocks: Iterable[torch.Tensor], weights: dict[str, torch.Tensor]
) -> None:
    """Write a safetensors file of `weights` and, streamed in blocks, a tensor `table`, all of one dtype.

    Raises `ValueError` if the blocks have another dtype, or other rows in total. Format:
    https://huggingface.co/docs/safetensors (header length, JSON header, tensor bytes).
    """
    dtype = next(iter(weights.values())).dtype
    shapes = {**{name: tuple(value.shape) for name, value in weights.items()}, "table": table}
    header = _header(shapes, dtype)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for value in weights.values():
            _write_tensor(file, value)
        written = 0
        for block in blocks:
            if block.dtype != dtype:
                raise ValueError(f"the table has dtype {block.dtype}, the other weights {dtype}")
            _write_tensor(file, block)
            written += len(block)
    if written != table[0]:
        raise ValueError(f"the table has {table[0]} rows, its blocks {written}")


def _header(shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> bytes:
    entries: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        entries[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    return header + b" " * (-len(header) % 8)


def _write_tensor(file: BinaryIO, value: torch.Tensor) -> None:
    file.write(value.detach().cpu().contiguous().numpy().data)
