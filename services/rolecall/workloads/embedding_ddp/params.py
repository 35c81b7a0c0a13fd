"""What a user may say about an `embedding-ddp` job. Torch-free; docstrings are the API's descriptions."""

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
    """Ends the job when the validation score no longer improves, and keeps the best epoch's weights."""

    metric: Literal["auc", "loss"] = "auc"
    """What must improve: `auc` up, or `loss` down."""


class Params(TrainingParams):
    """The parameters of an `embedding-ddp` job."""

    data: Data
    """Where the rows are and what their columns mean."""
    embedding_dim: Annotated[int, Field(ge=1, le=4096)] = 16
    """The length of one row of the table."""
    embedding_std: Weight = 0.05
    """The standard deviation of the table's first values."""
    pooling: Literal["sum", "mean", "none"] = "mean"
    """How the values of one column in one row become inputs of the dense layers: `sum` and `mean` make one vector of
    them; `none` keeps `max_values` vectors, with zeros where there are fewer values."""
    hidden: Widths = (128, 64)
    """The widths of the hidden layers; an empty list is a logistic regression on the embeddings."""
    dropout: Fraction = 0.0
    """The share of each hidden layer's outputs that is dropped in training."""
    model: Builder | None = None
    """Dense layers of the job's own, in place of `hidden` and `dropout`: a function that is called with the number of
    inputs and gives a torch module from [b, inputs] to [b] or [b, 1] logits."""
    batch_size: BatchSize = 1024
    """Rows per step over all trainers together; each takes its equal share."""
    protocol: Annotated[Literal["sync", "async", "tutorial"], RenamedProtocol] = "sync"
    """`sync`: a server applies the mean gradient of all trainers once per step, as one process would with the global
    batch; `async`: each trainer's gradient is applied when it comes, faster and not reproducible; `tutorial`: as
    `async`, through torch's own DistributedOptimizer, whose state lives per trainer."""
    sparse_optimizer: Annotated[SparseSgd | SparseAdagrad | SparseAdam, Field(discriminator="name")] = SparseAdagrad(
        name="adagrad"
    )
    """The optimizer of the embedding table: `sgd`, `adagrad` or `sparse-adam`."""
    dense_optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = Adam(name="adam")
    """The optimizer of the dense layers: `sgd`, `adam` or `adamw`."""
    precision: Literal["float32", "float64"] = "float32"
    """The type of all weights; `float64` is for proofs of parity."""
    early_stopping: EarlyStopping | None = None  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """When to end before the last epoch; without it, never."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model and (self.hidden, self.dropout) != ((128, 64), 0.0):
            raise ValueError("hidden and dropout shape the layers that model replaces; give either those or model")
        if self.protocol == "tutorial" and self.lr_schedule != LrSchedule():
            raise ValueError("protocol: tutorial keeps its learning rates constant; leave lr_schedule out")
        if self.early_stopping and self.data.validation == 0.0:
            raise ValueError(
                "early_stopping needs validation rows; set data.validation to a share above 0, or to paths"
            )
        return self
