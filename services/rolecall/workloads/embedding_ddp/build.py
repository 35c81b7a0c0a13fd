# pyright: standard
"""Builds what a job's parameters describe: batches of tensors, table and dense layers."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rolecall.kit import InputError, counted
from rolecall.kit.builders import build, explain_errors
from rolecall.kit.optimizers import sparse_optimizer
from rolecall.kit.parameter_server import ShardedModule, fill_standard_normal, sharded_embedding
from rolecall.kit.precision import weight_dtype
from rolecall.kit.tables.batches import RecordBatch, TableBatches, open_batches
from rolecall.kit.tables.columns import PADDING
from rolecall.kit.tables.encoded import EncodedTable
from rolecall.workloads.embedding_ddp.model import MLP, DenseLayers, Lookup
from rolecall.workloads.embedding_ddp.params import Params

TABLE = "embedding"


@dataclass(frozen=True, kw_only=True)
class Batch(Lookup):
    """One trainer's share of a global batch; `rows` may be 0."""

    numeric: Tensor
    """[rows, N] standardized numbers."""
    labels: Tensor
    """[rows] 0 or 1, the int64 index of the class, or the number to predict."""
    global_rows: int
    """Rows of the global batch, over all trainers."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A job's encoded rows as batches of tensors."""

    params: Params
    batches: TableBatches

    @property
    def table(self) -> EncodedTable:
        return self.batches.table

    @property
    def width(self) -> int:
        """Input vectors per row."""
        return self.table.columns.width if self.params.pooling == "none" else len(self.table.columns.ids)

    @property
    def classes(self) -> int:
        """The number of classes of the label; 0 for a label that is yes or no, or a number."""
        return len(self.table.classes)

    @property
    def dense_inputs(self) -> int:
        return self.width * self.params.embedding_dim + len(self.table.columns.numbers)

    def train_batches(self, epoch: int, start_step: int, rank: int, world: int) -> Iterator[Batch]:
        """This trainer's shares of the epoch's global batches, starting at `start_step` of the epoch."""
        return map(self._batch, self.batches.train(epoch, start_step, rank, world))

    def eval_batches(self, split: Literal["validation", "test"], rank: int, world: int) -> Iterator[Batch]:
        """This trainer's shares of a held-out split, in row order."""
        return map(self._batch, self.batches.held_out(split, rank, world))

    def _batch(self, share: RecordBatch) -> Batch:
        ids = share.rows["ids"]
        present = ids != PADDING
        return Batch(
            ids=torch.from_numpy(ids[present]),
            slots=torch.from_numpy(self._slots(present)),
            rows=len(share.rows),
            width=self.width,
            mean=self.params.pooling == "mean",
            # Copies, because the rows of a split can be those of the cache, which nobody may change.
            numeric=torch.from_numpy(np.array(share.rows["numbers"], order="C")).to(self._dtype),
            labels=torch.from_numpy(np.array(share.rows["label"], order="C")).to(self._label_dtype),
            global_rows=share.global_rows,
        )

    @property
    def _dtype(self) -> torch.dtype:
        return weight_dtype(self.params.precision)

    @property
    def _label_dtype(self) -> torch.dtype:
        return torch.int64 if self.classes else self._dtype

    def _slots(self, present: NDArray[np.bool_]) -> NDArray[np.int64]:
        rows, positions = np.nonzero(present)
        if self.params.pooling == "none":
            return rows * self.width + positions
        widths = [column.width for column in self.table.columns.ids]
        return rows * self.width + np.repeat(np.arange(len(widths)), widths)[positions]


def open_dataset(params: Params, cache: Path) -> Dataset:
    """Generate the job's rows, or find, parse and encode them, or open them from the cache."""
    return Dataset(params, open_batches(params.data, params.batch_size, params.seed, cache))


def make_dense(params: Params, inputs: int, classes: int) -> DenseLayers:
    """Newly initialized dense layers with `inputs` inputs: custom layers or an MLP.

    Raises `InputError` if the custom layers do not return an output for each row, or for each row and class.
    """
    if params.model is None:
        return DenseLayers(MLP(inputs, params.hidden, params.dropout, classes or 1), classes)
    sizes = (inputs, classes) if classes else (inputs,)
    own = DenseLayers(build(params.model, *sizes), classes)
    with torch.no_grad(), explain_errors(f"{params.model.builder} doesn't fit rows of {inputs} inputs"):
        own.eval()(torch.zeros(2, inputs), torch.zeros(2, 0))
    own.train()
    return own


def require_normalizable_shares(dense: nn.Module, inputs: int, batches: TableBatches, trainers: int) -> None:
    """Raises `InputError` if a trainer gets a single row of a batch, which the BatchNorm of `DenseLayers` refuses."""
    # SyncBatchNorm normalizes the rows of all trainers together.
    normalizes = any(isinstance(one, _BatchNorm) and not isinstance(one, nn.SyncBatchNorm) for one in dense.modules())
    if not normalizes or batches.least_rows >= 2 * trainers:
        return
    weight = next(dense.parameters())
    try:  # It may normalize other dimensions as well, or not be trained.
        with torch.no_grad():
            deepcopy(dense)(weight.new_zeros(1, inputs), weight.new_zeros(1, 0))
    except ValueError as error:
        raise InputError(
            f"the model contains BatchNorm, which needs 2 rows per trainer in each step, but the smallest batch can "
            f"have {counted(batches.least_rows, 'row')} for {counted(trainers, 'trainer')}; change batch_size, or "
            "min_batch of synthetic data, so that this batch is larger, use fewer trainers, or use LayerNorm"
        ) from error


def sharded_table(params: Params, rows: int, servers: int) -> ShardedModule:
    """A table of `rows` rows over all servers, on the GPUs of servers that have one."""
    return sharded_embedding(
        TABLE,
        rows,
        dim=params.embedding_dim,
        initializer=TableInitializer(params.seed, params.embedding_std),
        optimizer=sparse_optimizer(params.sparse_optimizer),
        servers=range(servers),
        dtype=weight_dtype(params.precision),
        transfer_dtype=transfer_dtype(params),
    )


def transfer_dtype(params: Params) -> torch.dtype | None:
    """The data type of vectors on the network; None for that of the weights."""
    return None if params.transfer_precision == "full" else torch.bfloat16


@dataclass(frozen=True, slots=True)
class TableInitializer:
    """Normally distributed initial values of the table."""

    # Not the kit's `Normal`, which seeds its blocks differently: existing seeds must give the same values.
    seed: int
    std: float

    def __call__(self, block: int, values: Tensor) -> None:
        fill_standard_normal(values, (self.seed * 1_000_003 + block) % 2**63).mul_(self.std)
