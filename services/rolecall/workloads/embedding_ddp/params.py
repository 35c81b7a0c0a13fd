"""Parameters of `embedding-ddp` jobs. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit import params as shared
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
)
from rolecall.kit.tables.params import Data


class EarlyStopping(shared.EarlyStopping):
    """Ends the job when the validation score stops improving, and keeps the best epoch's weights."""

    metric: Literal["auc", "loss"] = "auc"
    """The score that must improve: `auc` must increase, `loss` must decrease."""


class Params(TrainingParams):
    """The parameters of an `embedding-ddp` job."""

    data: Data
    """The rows and their columns."""
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
    """Custom dense layers that replace `hidden` and `dropout`: a function that is called with the number of inputs and
    returns a torch module from [b, inputs] to [b] or [b, 1] logits."""
    batch_size: BatchSize = 1024
    """Rows per step over all trainers; each trainer processes an equal share."""
    protocol: Annotated[Literal["sync", "async", "tutorial"], RenamedProtocol] = "sync"
    """Update protocol. `sync`: a server applies the mean gradient of all trainers once per step, like one process with
    the global batch; `async`: a server applies each trainer's gradient when it arrives, which is faster but not
    reproducible; `tutorial`: like `async`, with torch's DistributedOptimizer, which has its own state in each
    trainer."""
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
        if self.model and (self.hidden, self.dropout) != ((128, 64), 0.0):
            raise ValueError("hidden and dropout have no effect on a custom model; set either those or model")
        if self.protocol == "tutorial" and self.lr_schedule != LrSchedule():
            raise ValueError("protocol: tutorial does not support learning rate schedules; omit lr_schedule")
        if self.early_stopping and self.data.validation == 0.0:
            raise ValueError(
                "early_stopping needs validation rows; set data.validation to a share above 0, or to paths"
            )
        return self
