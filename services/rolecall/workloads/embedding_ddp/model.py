"""The model, for training and in exported models, which contain this file.

    from model import load
    model = load(".")
    model.predict([{"age": 42, "occupation": "Sales"}])  # a probability per row, or per row and class, or a number
    model.classes  # the classes, in the order of the probabilities; empty for a label that is yes or no or a number

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
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - its own types
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

    @property
    def offsets(self) -> Tensor:
        """[rows · width] int64: the index in `ids` at which each slot's ids begin, as of torch's `EmbeddingBag`."""
        if one_each(self.slots, self.rows * self.width):
            return self.slots
        sizes = torch.bincount(self.slots, minlength=self.rows * self.width)
        return sizes.cumsum(0) - sizes


def one_each(slots: Tensor, size: int) -> bool:
    """True if each of `size` slots has exactly one id, so that slots [n] and offsets are the same numbers."""
    return len(slots) == size and torch.equal(slots, torch.arange(size))


def pool(vectors: Tensor, lookup: Lookup) -> Tensor:
    """The dense layers' input [rows, width · dim] from vectors [n, dim]; empty slots are 0."""
    size, dim = lookup.rows * lookup.width, vectors.shape[1]
    if one_each(lookup.slots, size):
        return vectors.reshape(lookup.rows, lookup.width * dim)
    slots = lookup.slots.to(vectors.device)
    pooled = vectors.new_zeros(size, dim).index_add(0, slots, vectors)
    if lookup.mean:
        pooled = pooled / torch.bincount(slots, minlength=size).clamp(min=1).unsqueeze(1)
    return pooled.reshape(lookup.rows, lookup.width * dim)


class DenseLayers(nn.Module):
    """Pooled vectors and standardized numbers to outputs, by layers from [b, inputs] to [b] or [b, classes].

    `classes` is 0 for a single output: the logit of yes, or the predicted number.
    """

    def __init__(self, layers: nn.Module, classes: int = 0) -> None:
        super().__init__()
        self.layers = layers
        self.classes = classes

    def forward(self, pooled: Tensor, numbers: Tensor) -> Tensor:
        """The outputs [b] or [b, classes] of pooled vectors [b, width · dim] and numbers [b, N].

        Raises `ValueError` if the layers' output has another shape; a single output may be [b, 1].
        """
        numbers = numbers.to(pooled.dtype)
        own = isinstance(self.layers, MLP)
        outputs = self.layers(pooled, numbers) if own else self.layers(torch.cat([pooled, numbers], dim=1))
        shape = (len(pooled), self.classes) if self.classes else (len(pooled),)
        if outputs.shape != shape and (self.classes or outputs.shape != (len(pooled), 1)):
            raise ValueError(f"the dense layers returned the shape {list(outputs.shape)}; it must be {list(shape)}")
        return outputs.reshape(shape)


class MLP(nn.Module):
    """A multilayer perceptron from inputs [b, inputs], in two parts, to [b, outputs]. Its layers have the names of an
    `nn.Sequential`."""

    def __init__(self, inputs: int, hidden: Sequence[int], dropout: float, outputs: int = 1) -> None:
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in zip(widths, hidden, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        super().__init__()
        for number, layer in enumerate((*layers, nn.Linear(widths[-1], outputs))):
            self.add_module(str(number), layer)

    def forward(self, pooled: Tensor, numbers: Tensor) -> Tensor:
        """The outputs of the inputs `pooled` [b, p] followed by `numbers` [b, n].

        The first layer multiplies each part by its own columns. This takes no copy of the inputs and their gradients,
        and rows of all inputs would often not be aligned to the processor's vectors.
        """
        first, *others = self.children()
        assert isinstance(first, nn.Linear)
        split = pooled.shape[1]
        values = F.linear(pooled, first.weight[:, :split]) + F.linear(numbers, first.weight[:, split:], first.bias)
        for layer in others:
            values = layer(values)
        return values


class ExportedModel(nn.Module):
    """The complete model: encoder, embedding table and dense layers."""

    def __init__(self, description: dict[str, Any], table: Tensor) -> None:
        super().__init__()
        self.description = description
        self.classes: list[str] = description["classes"]
        ids = [IdColumn(**column) for column in description["ids"]]
        numbers = [NumberColumn(**column) for column in description["numbers"]]
        self.encoder = Encoder(ids, numbers, description["missing"])
        self.table = nn.Parameter(table)
        self._widths = [column.width if description["pooling"] == "none" else 1 for column in ids]
        inputs = sum(self._widths) * table.shape[1] + len(numbers)
        self.dense = DenseLayers(_make_layers(description, inputs), len(self.classes)).to(table.dtype)

    def forward(self, lookup: Lookup, numbers: Tensor) -> Tensor:
        return self.dense(pool(F.embedding(lookup.ids.to(self.table.device), self.table), lookup), numbers)

    @torch.inference_mode()
    def predict(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """The predictions for raw rows (column name to value, or list of values).

        For a label that is yes or no, the probability [b] of yes; for a label with classes, the probabilities
        [b, classes] in the order of `classes`; for a number, the predicted number [b].
        """
        numbers = torch.tensor([self.encoder.numbers(row) for row in rows], dtype=torch.float32).reshape(len(rows), -1)
        outputs = self(self._lookup(rows), numbers.to(self.table.device))
        match self.description["target"]:
            case "binary":
                return torch.sigmoid(outputs)
            case "classes":
                return torch.softmax(outputs, dim=1)
            case _:
                return outputs

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
    classes = len(description["classes"])
    if (own := description["model"]) is None:
        return MLP(inputs, description["hidden"], description["dropout"], classes or 1)
    module, _, function = own["builder"].partition(":")
    sizes = (inputs, classes) if classes else (inputs,)
    return getattr(importlib.import_module(module), function)(*sizes, **own["arguments"])


def load(folder: str | Path) -> ExportedModel:
    """Load the model of an unpacked archive in evaluation mode."""
    description = json.loads((Path(folder) / "model.json").read_text())
    weights = load_file(Path(folder) / "model.safetensors")
    model = ExportedModel(description, weights.pop("table"))
    model.dense.load_state_dict({name.removeprefix("dense."): value for name, value in weights.items()})
    return model.eval()
