"""A job's encoded rows in batches: the same global batches for any number of trainers. NumPy arrays, without torch.

Rows that are parsed in every epoch, because they are too large for the disk, pass a shuffle buffer. Their order depends
only on the seed, the epoch, the files and the buffer. Starting at a later step reads and drops the preceding rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rolecall.kit.data_order import DataOrder, derive_seed, share_of, splitmix64
from rolecall.kit.tables.encoded import EncodedTable
from rolecall.kit.tables.opening import open_table_source
from rolecall.kit.tables.params import SyntheticData, TableData
from rolecall.kit.tables.synthetic import open_synthetic_table

if TYPE_CHECKING:
    from rolecall.kit.tables.source import TableSource

Records = NDArray[np.void]
_BATCH_ROWS = 5
"""The purpose of the random numbers of rows."""


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One trainer's share of a global batch."""

    rows: Records
    """[b] of the dtype `Columns.record`; b may be 0."""
    global_rows: int
    """Rows of the global batch, over all trainers."""


@dataclass(frozen=True, slots=True)
class TableBatches:
    """The rows of a table in batches of `batch_size` over all trainers."""

    table: EncodedTable
    streamed: "TableSource | None"
    """The files of training rows that are read in every epoch; None if the rows are in the table."""
    batch_size: int
    seed: int
    min_batch: int | None = None
    """If set, each step of a table that is not streamed uses a random number of the batch's rows, at least this."""

    @property
    def steps_per_epoch(self) -> int:
        """Global batches in one pass over the training rows."""
        return self._order.steps_per_epoch

    @property
    def least_rows(self) -> int:
        """Rows that every global batch has at least, over all trainers; the last one of an epoch can be short."""
        last = self._order.batch_rows(self.steps_per_epoch - 1)
        return min(last, self.min_batch or last)

    def train(self, epoch: int, start_step: int, rank: int, world: int) -> Iterator[RecordBatch]:
        """The shares of trainer `rank` of `world` in the epoch's global batches, starting at `start_step`."""
        if self.streamed is not None:
            yield from self._read(self.streamed, epoch, start_step, rank, world)
            return
        records, order = self.table.records("train"), self._order
        for step in range(start_step, order.steps_per_epoch):
            rows = self._used_rows(epoch, step)
            yield RecordBatch(records[order.share(epoch, step, rank, world, rows)], rows)

    def held_out(self, split: str, rank: int, world: int) -> Iterator[RecordBatch]:
        """The shares of trainer `rank` of `world` in a held-out split, in row order."""
        records = self.table.records(split)
        for start in range(0, len(records), self.batch_size):
            whole = records[start : start + self.batch_size]
            yield RecordBatch(whole[share_of(len(whole), rank, world)], len(whole))

    def _used_rows(self, epoch: int, step: int) -> int:
        """The rows of a global batch of the table that its step uses."""
        rows = self._order.batch_rows(step)
        if self.min_batch is None or rows <= self.min_batch:
            return rows
        random = splitmix64(np.array([step], np.uint64), derive_seed(derive_seed(self.seed, epoch), _BATCH_ROWS))
        return self.min_batch + int(random[0] % np.uint64(rows - self.min_batch + 1))

    @property
    def _order(self) -> DataOrder:
        return DataOrder(self.table.rows["train"], self.batch_size, self.seed)

    def _read(self, source: "TableSource", epoch: int, start_step: int, rank: int, world: int) -> Iterator[RecordBatch]:
        chunks = source.train_records(self.table.columns)
        shuffled = shuffle(chunks, source.data.shuffle_buffer, self.seed, epoch)
        for whole in islice(rebatch(shuffled, self.batch_size), start_step, None):
            yield RecordBatch(whole[share_of(len(whole), rank, world)], len(whole))


def open_batches(data: TableData, batch_size: int, seed: int, cache: Path) -> TableBatches:
    """Generate the rows of `data`, or find, parse and encode them, or open them from the owner's `cache`.

    Raises `InputError` if the rows can't be used.
    """
    if isinstance(data, SyntheticData):
        table = open_synthetic_table(data, cache)
        return TableBatches(table, None, batch_size, seed, min_batch=data.synthetic.min_batch)
    source = open_table_source(data, seed)
    table = source.encoded_table(cache)
    return TableBatches(table, source.with_classes(table.classes) if data.stream else None, batch_size, seed)


def shuffle(chunks: Iterator[Records], buffer_rows: int, seed: int, epoch: int) -> Iterator[Records]:
    """The records of `chunks` in random order: each new record replaces a random one of `buffer_rows` in the buffer."""
    random = np.random.Generator(np.random.Philox(key=derive_seed(seed, epoch)))
    buffer: Records | None = None
    for chunk in chunks:
        held = chunk[:0].copy() if buffer is None else buffer
        room = buffer_rows - len(held)
        buffer = np.concatenate([held, chunk[:room]])
        for start in range(room, len(chunk), buffer_rows):
            incoming = chunk[start : start + buffer_rows]
            indices = random.choice(len(buffer), len(incoming), replace=False)
            outgoing = buffer[indices]
            buffer[indices] = incoming
            yield outgoing
    if buffer is not None:
        yield random.permutation(buffer)


def rebatch(chunks: Iterator[Records], batch_size: int) -> Iterator[Records]:
    """The same records in batches of `batch_size`; the last may be short."""
    waiting: list[Records] = []
    rows = 0
    for chunk in chunks:
        waiting.append(chunk)
        rows += len(chunk)
        if rows < batch_size:
            continue
        together = np.concatenate(waiting)
        whole = rows - rows % batch_size
        yield from np.split(together[:whole], whole // batch_size)
        waiting, rows = [together[whole:]], rows - whole
    if rows:
        yield np.concatenate(waiting)
