"""A job's rows as batches of tensors; the same global batches for any number of trainers."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rolecall.kit.data_order import DataOrder, share_of
from rolecall.kit.tables.columns import PADDING, Columns
from rolecall.kit.tables.encoded import EncodedTable, TableSource, open_encoded_table, open_table_source
from rolecall.kit.tables.rows import BadRows
from rolecall.kit.tables.shuffle import rebatch, shuffle
from rolecall.workloads.embedding_ddp.model import Lookup
from rolecall.workloads.embedding_ddp.params import Params

Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, kw_only=True)
class Batch(Lookup):
    """One trainer's share of a global batch; `rows` may be 0."""

    numeric: torch.Tensor
    """[rows, N] standardized numbers."""
    labels: torch.Tensor
    """[rows] 0 or 1."""
    global_rows: int
    """Rows of the global batch, over all trainers."""

    @property
    def offsets(self) -> torch.Tensor:
        """[rows · width + 1] int64: the start of each input vector's ids in `ids`, and the end."""
        return torch.searchsorted(self.slots, torch.arange(self.rows * self.width + 1))


@dataclass(frozen=True, slots=True)
class Dataset:
    """A job's encoded rows."""

    params: Params
    source: TableSource
    cache: EncodedTable
    dtype: torch.dtype

    @property
    def columns(self) -> Columns:
        """The columns, fitted to the training rows."""
        return self.cache.columns

    @property
    def fingerprint(self) -> str:
        """A hash of dictionaries and row counts, for comparison between nodes."""
        return self.cache.fingerprint

    @property
    def num_ids(self) -> int:
        """Rows of the embedding table."""
        return self.columns.num_ids

    @property
    def bad_rows(self) -> int:
        """Rows that could not be parsed and were skipped."""
        return self.cache.bad_rows

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the training rows."""
        return self._order("train").steps_per_epoch

    @property
    def width(self) -> int:
        """Input vectors per row."""
        return self.columns.width if self.params.pooling == "none" else len(self.columns.ids)

    def rows(self, split: Split) -> int:
        """The number of rows in a split."""
        return self.cache.rows[split]

    @property
    def dense_inputs(self) -> int:
        """The input width of the dense layers."""
        return self.width * self.params.embedding_dim + len(self.columns.numbers)

    def train_batches(self, epoch: int, start_step: int, rank: int, world: int) -> Iterator[Batch]:
        """This trainer's shares of the epoch's global batches, starting at `start_step` of the epoch."""
        if self.params.data.stream:
            yield from self._streamed(epoch, start_step, rank, world)
            return
        records, order = self.cache.records("train"), self._order("train")
        for step in range(start_step, order.steps_per_epoch):
            yield self._batch(records[order.share(epoch, step, rank, world)], order.batch_rows(step))

    def eval_batches(self, split: Split, rank: int, world: int) -> Iterator[Batch]:
        """This trainer's shares of a held-out split, in row order."""
        records, size = self.cache.records(split), self.params.batch_size
        for start in range(0, len(records), size):
            whole = records[start : start + size]
            yield self._batch(whole[share_of(len(whole), rank, world)], len(whole))

    def _order(self, split: Split) -> DataOrder:
        return DataOrder(self.rows(split), self.params.batch_size, self.params.seed)

    def _streamed(self, epoch: int, start_step: int, rank: int, world: int) -> Iterator[Batch]:
        data = self.params.data
        chunks = (self.columns.encode(rows, data) for rows in self.source.chunks("train", BadRows(data.max_bad_rows)))
        shuffled = shuffle(chunks, data.shuffle_buffer, self.params.seed, epoch)
        for whole in islice(rebatch(shuffled, self.params.batch_size), start_step, None):
            yield self._batch(whole[share_of(len(whole), rank, world)], len(whole))

    def _batch(self, records: NDArray[np.void], global_rows: int) -> Batch:
        ids = records["ids"]
        present = ids != PADDING
        return Batch(
            ids=torch.from_numpy(ids[present]),
            slots=torch.from_numpy(self._slots(present)),
            rows=len(records),
            width=self.width,
            mean=self.params.pooling == "mean",
            numeric=torch.from_numpy(np.ascontiguousarray(records["numbers"])).to(self.dtype),
            labels=torch.from_numpy(np.ascontiguousarray(records["label"])).to(self.dtype),
            global_rows=global_rows,
        )

    def _slots(self, present: NDArray[np.bool_]) -> NDArray[np.int64]:
        rows, positions = np.nonzero(present)
        if self.params.pooling == "none":
            return rows * self.width + positions
        field_of_position = np.repeat(np.arange(len(self.columns.ids)), [column.width for column in self.columns.ids])
        return rows * self.width + field_of_position[positions]


def open_dataset(params: Params, cache: Path, *, dtype: torch.dtype) -> Dataset:
    """Find, parse and encode the job's rows, or open them from the cache; numbers have type `dtype`."""
    source = open_table_source(params.data, params.seed)
    return Dataset(params, source, open_encoded_table(source, cache), dtype)
