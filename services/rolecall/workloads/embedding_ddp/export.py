"""Exports the trained model as a self-contained zip: plain PyTorch code, safetensors and JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from rolecall.kit.export import write_archive
from rolecall.kit.precision import weight_dtype
from rolecall.kit.tables import encoding
from rolecall.kit.tables.params import Target
from rolecall.workloads.embedding_ddp import model
from rolecall.workloads.embedding_ddp.build import Dataset
from rolecall.workloads.embedding_ddp.params import Params

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    # Of buffers, such as BatchNorm's `num_batches_tracked`.
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
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
    table = torch.empty(
        dataset.table.columns.num_ids, params.embedding_dim, dtype=weight_dtype(params.precision), device="meta"
    )
    tensors = folder / "model.safetensors"
    write_weights(tensors, table, blocks, weights)
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
    path: Path, table: torch.Tensor, blocks: Iterable[torch.Tensor], weights: dict[str, torch.Tensor]
) -> None:
    """Write a safetensors file of `weights` and, streamed in blocks, a tensor `table` of this one's shape and dtype.

    Raises `ValueError` if the blocks have another dtype, or other rows in total. Format:
    https://huggingface.co/docs/safetensors (header length, JSON header, tensor bytes).
    """
    header = _header({**weights, "table": table})
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for value in weights.values():
            _write_tensor(file, value)
        written = 0
        for block in blocks:
            if block.dtype != table.dtype:
                raise ValueError(f"the table has dtype {table.dtype}, a block of it {block.dtype}")
            _write_tensor(file, block)
            written += len(block)
    if written != len(table):
        raise ValueError(f"the table has {len(table)} rows, its blocks {written}")


def _header(tensors: dict[str, torch.Tensor]) -> bytes:
    entries: dict[str, object] = {}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.nbytes
        entries[name] = {"dtype": _DTYPES[value.dtype], "shape": value.shape, "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    return header + b" " * (-len(header) % 8)


def _write_tensor(file: BinaryIO, value: torch.Tensor) -> None:
    file.write(value.detach().cpu().contiguous().numpy().data)
