"""The classifier, as it trains and as it is handed to users: this file goes into every exported model, unchanged.

    from model import load
    model = load(".")
    model.predict([{"age": 42, "occupation": "Sales"}])  # a probability per row

It needs torch, numpy and safetensors, and nothing of the service that trained it; where the job brought dense layers of
its own, also the package that makes them.
"""

import hashlib
import importlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from safetensors.torch import load_file
from torch import Tensor, nn

MISSING, UNKNOWN, FIRST = 0, 1, 2
"""A column's first ids: no value, a value that training did not see, and the first value that it did."""


@dataclass(frozen=True)
class IdColumn:
    """A column that is looked up in the embedding table, in rows [offset, offset + size)."""

    name: str
    kind: str
    """`dictionary`, `hash` or `buckets` (a bucketed numeric column)."""
    offset: int
    size: int
    width: int
    """How many values of one row count; above 1 the column is multi-valued."""
    separator: str | None
    values: list[str]
    """A dictionary's values, in the order of their ids."""
    bounds: list[float]
    """The bounds between a numeric column's buckets, rising; a number equal to a bound lies above it."""


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column that is normalised: (x - mean) / deviation, x first taken to sign(x) · log(1 + |x|) if `log`."""

    name: str
    mean: float
    deviation: float
    log: bool


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The ids of `rows` rows, flat, and where their vectors go."""

    ids: Tensor
    """[n] int64 rows of the embedding table."""
    slots: Tensor
    """[n] int64, rising: which of the rows · width input vectors each of them is added to."""
    rows: int
    width: int
    """Input vectors per row: one per column, or with `pooling: none` one per value that a row may have."""
    mean: bool
    """Whether vectors that share a slot are averaged, not summed."""


def pool(vectors: Tensor, lookup: Lookup) -> Tensor:
    """The dense layers' input [rows, width · dim] from vectors [n, dim]; zeros in slots without one."""
    size, dim = lookup.rows * lookup.width, vectors.shape[1]
    if len(vectors) == size:  # no slot is shared and none is empty
        return vectors.reshape(lookup.rows, lookup.width * dim)
    slots = lookup.slots.to(vectors.device)
    pooled = vectors.new_zeros(size, dim).index_add(0, slots, vectors)
    if lookup.mean:
        pooled = pooled / torch.bincount(slots, minlength=size).clamp(min=1).unsqueeze(1)
    return pooled.reshape(lookup.rows, lookup.width * dim)


class DenseNet(nn.Module):
    """From the pooled vectors and the normalised numbers to one logit, by layers from [b, inputs] to [b] or [b, 1]."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, pooled: Tensor, numbers: Tensor) -> Tensor:
        """The logits [b] of pooled vectors [b, width · dim] and numbers [b, N]."""
        return self.layers(torch.cat([pooled, numbers.to(pooled.dtype)], dim=1)).reshape(len(pooled))


def perceptron(inputs: int, hidden: Sequence[int], dropout: float) -> nn.Sequential:
    """Layers from [b, inputs] to [b, 1]."""
    widths = [inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in zip(widths, hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 1))


def stable_hash(text: str) -> int:
    """64 bits that are the same on every machine and in every version: BLAKE2b of the text's UTF-8, little-endian."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Encoder:
    """Turns raw rows into ids and numbers, as training did."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.columns = [IdColumn(**column) for column in description["ids"]]
        self.numbers = [NumberColumn(**column) for column in description["numbers"]]
        self._missing = frozenset(description["missing"])
        self._pooling = description["pooling"]
        self._dictionaries = [{text: i for i, text in enumerate(column.values, FIRST)} for column in self.columns]

    @property
    def width(self) -> int:
        """Input vectors per row."""
        return sum(column.width for column in self.columns) if self._pooling == "none" else len(self.columns)

    def lookup(self, rows: Sequence[dict[str, Any]]) -> Lookup:
        """The ids of raw rows."""
        found = [(row * self.width + slot, i) for row, given in enumerate(rows) for slot, i in self._row_ids(given)]
        pairs = torch.tensor(found, dtype=torch.int64).reshape(-1, 2)
        mean = self._pooling == "mean"
        return Lookup(slots=pairs[:, 0], ids=pairs[:, 1], rows=len(rows), width=self.width, mean=mean)

    def normalized(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """The normalised numbers [b, N] of raw rows, float32."""
        values = [[self._normalized(column, row) for column in self.numbers] for row in rows]
        return torch.tensor(values, dtype=torch.float32).reshape(len(rows), len(self.numbers))

    def _row_ids(self, row: dict[str, Any]) -> Iterator[tuple[int, int]]:
        start = 0
        for column, dictionary in zip(self.columns, self._dictionaries, strict=True):
            for position, i in enumerate(self._column_ids(column, dictionary, _get(row, column.name))):
                yield start + (position if self._pooling == "none" else 0), column.offset + i
            start += column.width if self._pooling == "none" else 1

    def _column_ids(self, column: IdColumn, dictionary: dict[str, int], given: Any) -> list[int]:
        if column.kind == "buckets":
            number = self._number(given)
            bucket = int(np.searchsorted(np.array(column.bounds), number, side="right"))
            return [MISSING if math.isnan(number) else bucket + FIRST]
        texts = self._texts(column, given)
        if column.kind == "hash":
            return [stable_hash(text) % (column.size - FIRST) + FIRST for text in texts] or [MISSING]
        return [dictionary.get(text, UNKNOWN) for text in texts] or [MISSING]

    def _texts(self, column: IdColumn, given: Any) -> list[str]:
        if isinstance(given, str) and column.separator is not None:
            given = given.split(column.separator)
        many = given if isinstance(given, list | tuple) else [given]
        texts = [_text(one).strip() for one in many if one is not None]
        return [text for text in texts if text and text not in self._missing][: column.width]

    def _normalized(self, column: NumberColumn, row: dict[str, Any]) -> float:
        number = self._number(_get(row, column.name))
        if column.log:
            number = math.copysign(math.log1p(abs(number)), number)
        return 0.0 if math.isnan(number) else (number - column.mean) / column.deviation

    def _number(self, given: Any) -> float:
        text = given.strip() if isinstance(given, str) else given
        return math.nan if text is None or text == "" or text in self._missing else float(text)


def _get(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"a row lacks the column {name!r}; give None where its value is missing")
    return row[name]


def _text(value: Any) -> str:
    """A value as training's reader writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


class ExportedModel(nn.Module):
    """The whole classifier in one process: encoder, embedding table and dense layers."""

    def __init__(self, description: dict[str, Any], table: Tensor) -> None:
        super().__init__()
        self.description = description
        self.encoder = Encoder(description)
        self.table = nn.Parameter(table)
        inputs = self.encoder.width * table.shape[1] + len(self.encoder.numbers)
        self.dense = DenseNet(_layers(description, inputs)).to(table.dtype)

    def forward(self, lookup: Lookup, numbers: Tensor) -> Tensor:
        """The logits [b]."""
        return self.dense(pool(F.embedding(lookup.ids.to(self.table.device), self.table), lookup), numbers)

    @torch.inference_mode()
    def predict(self, rows: Sequence[dict[str, Any]]) -> Tensor:
        """The probability [b] that each raw row (column name to value, or list of values) is positive."""
        numbers = self.encoder.normalized(rows).to(self.table.device)
        return torch.sigmoid(self(self.encoder.lookup(rows), numbers))


def _layers(description: dict[str, Any], inputs: int) -> nn.Module:
    if (own := description["model"]) is None:
        return perceptron(inputs, description["hidden"], description["dropout"])
    module, _, function = own["builder"].partition(":")
    return getattr(importlib.import_module(module), function)(inputs, **own["arguments"])


def load(folder: str | Path) -> ExportedModel:
    """The model in an unpacked export, ready to predict."""
    description = json.loads((Path(folder) / "model.json").read_text())
    weights = load_file(Path(folder) / "model.safetensors")
    model = ExportedModel(description, weights.pop("table"))
    model.dense.load_state_dict({name.removeprefix("dense."): value for name, value in weights.items()})
    return model.eval()
