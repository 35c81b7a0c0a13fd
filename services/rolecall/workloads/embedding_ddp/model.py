"""The classifier, for training and in exported models, which contain this file.

    from model import load
    model = load(".")
    model.predict([{"age": 42, "occupation": "Sales"}])  # a probability per row

Requires torch, numpy and safetensors, and for custom dense layers the package that builds them.
"""

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's convention
from safetensors.torch import load_file
from torch import Tensor, nn

from rolecall.kit.tables.encoding import Encoder, IdColumn, NumberColumn


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The flattened ids of `rows` rows, and the input vectors that they contribute to."""

    ids: Tensor
    """[n] int64 rows of the embedding table."""
    slots: Tensor
    """[n] int64, ascending: the index, below rows · width, of the input vector that each id is pooled into."""
    rows: int
    width: int
    """Input vectors per row: one per column, or with `pooling: none` one per possible value."""
    mean: bool
    """True if vectors with the same slot are averaged, not summed."""


def pool(vectors: Tensor, lookup: Lookup) -> Tensor:
    """The dense layers' input [rows, width · dim] from vectors [n, dim]; empty slots are 0."""
    size, dim = lookup.rows * lookup.width, vectors.shape[1]
    if len(vectors) == size:  # exactly one vector in each slot
        return vectors.reshape(lookup.rows, lookup.width * dim)
    slots = lookup.slots.to(vectors.device)
    pooled = vectors.new_zeros(size, dim).index_add(0, slots, vectors)
    if lookup.mean:
        pooled = pooled / torch.bincount(slots, minlength=size).clamp(min=1).unsqueeze(1)
    return pooled.reshape(lookup.rows, lookup.width * dim)


class DenseLayers(nn.Module):
    """Pooled vectors and standardized numbers to a logit, by layers from [b, inputs] to [b] or [b, 1]."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, pooled: Tensor, numbers: Tensor) -> Tensor:
        """The logits [b] of pooled vectors [b, width · dim] and numbers [b, N]."""
        return self.layers(torch.cat([pooled, numbers.to(pooled.dtype)], dim=1)).reshape(len(pooled))


def mlp(inputs: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    """A multilayer perceptron from [b, inputs] to [b, 1]."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in zip(widths, hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


class ExportedModel(nn.Module):
    """The complete classifier: encoder, embedding table and dense layers."""

    def __init__(self, description: dict[str, Any], table: Tensor) -> None:
        super().__init__()
        self.description = description
        ids = [IdColumn(**column) for column in description["ids"]]
        numbers = [NumberColumn(**column) for column in description["numbers"]]
        self.encoder = Encoder(ids, numbers, description["missing"])
        self.table = nn.Parameter(table)
        self._widths = [column.width if description["pooling"] == "none" else 1 for column in ids]
        inputs = sum(self._widths) * table.shape[1] + len(numbers)
        self.dense = DenseLayers(_make_layers(description, inputs)).to(table.dtype)

    def forward(self, lookup: Lookup, numbers: Tensor) -> Tensor:
        return self.dense(pool(F.embedding(lookup.ids.to(self.table.device), self.table), lookup), numbers)

    @torch.inference_mode()
    def predict(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """The probability [b] that each raw row (column name to value, or list of values) is positive."""
        numbers = torch.tensor([self.encoder.numbers(row) for row in rows], dtype=torch.float32).reshape(len(rows), -1)
        return torch.sigmoid(self(self._lookup(rows), numbers.to(self.table.device)))

    def _lookup(self, rows: Sequence[dict[str, Any]]) -> Lookup:
        width, ids, slots = sum(self._widths), list[int](), list[int]()
        for number, row in enumerate(rows):
            slot = number * width
            for column_width, found in zip(self._widths, self.encoder.ids(row), strict=True):
                ids += found
                slots += range(slot, slot + len(found)) if column_width > 1 else [slot] * len(found)
                slot += column_width
        mean = self.description["pooling"] == "mean"
        return Lookup(ids=torch.tensor(ids), slots=torch.tensor(slots), rows=len(rows), width=width, mean=mean)


def _make_layers(description: dict[str, Any], inputs: int) -> nn.Module:
    if (own := description["model"]) is None:
        return mlp(inputs, description["hidden"], description["dropout"])
    module, _, function = own["builder"].partition(":")
    return getattr(importlib.import_module(module), function)(inputs, **own["arguments"])


def load(folder: str | Path) -> ExportedModel:
    """Load the model of an unpacked archive in evaluation mode."""
    description = json.loads((Path(folder) / "model.json").read_text())
    weights = load_file(Path(folder) / "model.safetensors")
    model = ExportedModel(description, weights.pop("table"))
    model.dense.load_state_dict({name.removeprefix("dense."): value for name, value in weights.items()})
    return model.eval()
