"""Parameters of `embedding-ddp` jobs. Torch-free; docstrings are the API's descriptions."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit import params as shared
from rolecall.kit import refuse
from rolecall.kit.builders import Builder
from rolecall.kit.params import (
    Adam,
    AdamW,
    BatchSize,
    Fraction,
    LrSchedule,
    RenamedProtocol,
    Sgd,
    SparseAdagrad,
    SparseAdam,
    SparseSgd,
    TrainingParams,
    Weight,
    Widths,
    changed,
)
from rolecall.kit.tables.params import SyntheticData, TableData, Target

Loss = Literal["binary-cross-entropy", "cross-entropy", "mse", "l1", "huber"]
Metric = Literal["auc", "accuracy", "loss", "rmse", "mae"]
LOSSES: dict[Target, tuple[Loss, ...]] = {
    "binary": ("binary-cross-entropy",),
    "classes": ("cross-entropy",),
    "number": ("mse", "l1", "huber"),
}
"""The losses for each kind of label; the first is the default."""
METRICS: dict[Target, tuple[Metric, ...]] = {
    "binary": ("auc", "loss", "accuracy"),
    "classes": ("loss", "accuracy"),
    "number": ("loss", "rmse", "mae"),
}
"""The metrics for each kind of label; the first is the default of early stopping."""


class EarlyStopping(shared.EarlyStopping):
    """Ends the job when the validation score stops improving, and keeps the best epoch's weights."""

    metric: Metric | None = None
    """The validation score that must improve: `auc` and `accuracy` must increase, `loss`, `rmse` and `mae` must
    decrease. By default `auc` for a label that is yes or no, else `loss`."""


class Params(TrainingParams):
    """The parameters of an `embedding-ddp` job."""

    data: TableData
    """The rows and their columns: from files, or generated."""
    loss: Loss | None = None
    """The loss, as torch's function of the same name. By default it follows from the label: `binary-cross-entropy` for
    yes or no, `cross-entropy` for classes, `mse` for a number; for a number also `l1` or `huber`."""
    embedding_dim: Annotated[int, Field(ge=1, le=4096)] = 16
    """Dimension of the embeddings."""
    embedding_std: Weight = 0.05
    """Standard deviation of the table's initial values."""
    pooling: Literal["sum", "mean", "none"] = "mean"
    """Combination of the values of a multi-valued column for the dense layers: `sum` and `mean` make them one vector;
    `none` keeps `max_values` vectors, padded with zeros."""
    hidden: Widths = (128, 64)
    """Widths of the hidden layers; an empty list gives a logistic regression on the embeddings."""
    dropout: Fraction = 0.0
    """Dropout rate of each hidden layer's outputs."""
    model: Builder | None = None
    """Custom dense layers that replace `hidden` and `dropout`: a function that is called with the number of inputs,
    and for a label with classes also with their number, and returns a torch module from [b, inputs] to [b] or [b, 1],
    with classes to [b, classes]."""
    pool_at: Literal["auto", "server", "trainer"] = "auto"
    """The place where the values of a multi-valued column are combined. `trainer`: each distinct vector of a batch is
    sent once; `server`: one vector per row and column is sent; `auto`: for each batch the one that sends fewer bytes.
    The results are equal except for rounding. `protocol: tutorial` always combines on the servers."""
    batch_size: BatchSize = 1024
    """Rows per step over all trainers; each trainer processes an equal share."""
    protocol: Annotated[Literal["sync", "async", "tutorial"], RenamedProtocol] = "sync"
    """Update protocol. `sync`: a server applies the mean gradient of all trainers once per step, like one process with
    the global batch; `async`: a server applies each trainer's gradient when it arrives, which is faster but not
    reproducible; `tutorial`: like `async`, with the tutorial's RemoteModule on each server and torch's
    DistributedOptimizer, which has its own state in each trainer."""
    staleness: Annotated[int, Field(ge=0, le=8)] = 0
    """Batches whose rows trainers look up ahead, so that look-ups and the servers' updates take place during the
    computation. The vectors of a step then lack the updates of up to this many steps before it. With 0, they lack none
    in `sync`, and none of the trainer's own in `async`. In `sync`, look-ups end before the next update, so values above
    1 save no more time than 1. An attempt that resumes and an epoch start without rows that were looked up ahead. Not
    with `pool_at: server`; with `auto`, trainers combine."""
    transfer_precision: Literal["full", "bfloat16"] = "full"
    """Data type of vectors and their gradients on the network: that of the weights, or `bfloat16`, which halves the
    bytes and rounds to 8 significant bits. The weights and the optimizer state keep their `precision`."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] | None = None
    """With `protocol: tutorial`: the single optimizer of all weights, instead of `sparse_optimizer` and
    `dense_optimizer`; gradients of the table are then dense, as in the tutorial."""
    sparse_optimizer: Annotated[SparseSgd | SparseAdagrad | SparseAdam, Field(discriminator="name")] = SparseAdagrad(
        name="adagrad"
    )
    """Optimizer of the embedding table: `sgd`, `adagrad` or `sparse-adam`."""
    dense_optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = Adam(name="adam")
    """Optimizer of the dense layers: `sgd`, `adam` or `adamw`."""
    precision: Literal["float32", "float64"] = "float32"
    """Data type of all weights; `float64` is for parity tests."""
    early_stopping: EarlyStopping | None = None  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Condition to end before the last epoch; off by default."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse([*self._wrong_with_model(), *self._wrong_with_protocol(), *self._wrong_with_data()])
        return self

    def _wrong_with_model(self) -> Iterator[str]:
        for name in changed(self, ("hidden", "dropout") if self.model else ()):
            yield f"{name} has no effect on a custom model; omit {name} or model"

    def _wrong_with_protocol(self) -> Iterator[str]:
        tutorial = self.protocol == "tutorial"
        if tutorial and self.lr_schedule != LrSchedule():
            yield "lr_schedule is not supported by protocol: tutorial; omit lr_schedule"
        if tutorial and self.pool_at == "trainer":
            yield "pool_at: trainer does not fit protocol: tutorial; set pool_at to auto or server"
        if tutorial and self.staleness:
            yield "staleness does not fit protocol: tutorial, which looks up no rows ahead; omit staleness"
        if tutorial and self.transfer_precision != "full":
            yield "transfer_precision does not fit protocol: tutorial, which sends full precision; omit it"
        if self.precision == "float64" and self.transfer_precision != "full":
            yield "precision: float64 is for exact comparisons; omit transfer_precision, or set float32"
        if self.pool_at == "server" and self.staleness and not tutorial:
            yield (
                f"pool_at: server does not fit staleness: {self.staleness}, because trainers combine rows that are "
                "looked up ahead; set pool_at to auto or trainer, or omit staleness"
            )
        if self.pool_at == "server" and self.pooling == "none":
            yield "pool_at: server needs values to combine; set pooling to sum or mean"
        if self.optimizer is None:
            return
        if not tutorial:
            yield f"optimizer is for protocol: tutorial; with {self.protocol}, set sparse_optimizer and dense_optimizer"
            return
        for name in changed(self, ("sparse_optimizer", "dense_optimizer")):
            yield f"{name} does not fit optimizer, which is for all weights; omit {name} or optimizer"

    def _wrong_with_data(self) -> Iterator[str]:
        if isinstance(self.data, SyntheticData) and (self.data.synthetic.min_batch or 1) > self.batch_size:
            yield (
                f"data.synthetic.min_batch is {self.data.synthetic.min_batch}, but a batch has {self.batch_size} rows; "
                "set it to at most batch_size"
            )
        target = self.target
        if self.loss is not None and self.loss not in LOSSES[target]:
            yield f"loss: {self.loss} doesn't fit {_LABELS[target]}; set {' or '.join(LOSSES[target])}"
        if self.early_stopping is None:
            return
        if self.data.validation == 0.0:
            yield "early_stopping needs validation rows; set data.validation to a share above 0, or to paths"
        metric = self.early_stopping.metric
        if metric is not None and metric not in METRICS[target]:
            yield (
                f"early_stopping.metric: {metric} doesn't exist for {_LABELS[target]}; "
                f"set {' or '.join(METRICS[target])}"
            )

    @property
    def target(self) -> Target:
        """The kind of the label."""
        return self.data.label.target

    @property
    def loss_name(self) -> Loss:
        """The loss, or its default."""
        return self.loss or LOSSES[self.target][0]

    @property
    def stopping_metric(self) -> Metric:
        """The metric of early stopping, or its default."""
        return (self.early_stopping and self.early_stopping.metric) or METRICS[self.target][0]


_LABELS: dict[Target, str] = {
    "binary": "a label that is yes or no",
    "classes": "a label with classes",
    "number": "a label that is a number",
}
