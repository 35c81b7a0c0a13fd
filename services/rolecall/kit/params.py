"""What the parameters of several workloads have in common. Torch-free; docstrings are the API's descriptions.

Every number, text and list has an upper bound. The bounds keep the master's checks short and arithmetic within 64 bits;
they are generous, so that no cluster of thousands of GPUs reaches them, and say nothing about what is wise.
"""

import math
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from rolecall.kit import data_access
from rolecall.spec import workload

Count = Annotated[int, Field(ge=1, le=2**40)]
"""Of steps, rows and the like: what a job does one after the other."""
Epochs = Annotated[int, Field(ge=1, le=2**24)]
BatchSize = Annotated[int, Field(ge=1, le=2**32)]
"""Samples of one step over all workers together; bounded so that its divisors are found at once."""
Replicas = Annotated[int, Field(ge=1, le=4096)]
Width = Annotated[int, Field(ge=1, le=2**20)]
"""Of a layer."""
Positive = Annotated[float, Field(gt=0, le=1e12)]
Weight = Annotated[float, Field(ge=0, le=1e12)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Lr = Annotated[float, Field(gt=0, le=1e6)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=1024)]
"""Of a column, a class or a block."""
Names = Annotated[list[Name], Field(max_length=50_000, fail_fast=True)]
Value = Text | Annotated[int, Field(ge=-(2**63), lt=2**64)] | Annotated[float, Field(ge=-1e308, le=1e308)] | bool


Precision = Literal["float32", "float64", "bfloat16"]
"""See `rolecall.kit.precision`."""


def tupled(given: Any) -> Any:
    """A list stands for a tuple; pydantic sees to that in JSON, but no longer behind another `BeforeValidator`."""
    return tuple(cast(list[Any], given)) if isinstance(given, list) else given


Widths = Annotated[tuple[Width, ...], Field(max_length=1024), BeforeValidator(tupled)]


def _renamed(given: Any) -> Any:
    if given == "seed":
        raise ValueError('"seed" was renamed: use "tutorial"')
    return given


RenamedProtocol = BeforeValidator(_renamed)
"""For a `protocol` that has the value `tutorial`: the error for its old name gives the new one."""


def listed(given: Any) -> Any:
    """A single value stands for a list of one."""
    return [given] if isinstance(given, str | int | float | bool) else given


_AnyPath = Annotated[str, Field(min_length=1, max_length=4096)]
DataPath = Annotated[_AnyPath, AfterValidator(data_access.DataPath)]
"""A path or URL of input data; Linux takes no longer paths."""
Paths = Annotated[
    list[DataPath],
    Field(min_length=1, max_length=50_000, fail_fast=True),
    BeforeValidator(listed, json_schema_input_type=_AnyPath | Annotated[list[_AnyPath], Field(max_length=50_000)]),
]


class Sgd(workload.Params):
    """Stochastic gradient descent."""

    name: Literal["sgd"]
    """Chooses this optimizer."""
    lr: Lr = 0.1
    """The learning rate."""
    momentum: Fraction = 0.0
    """The share of the last update that is kept."""
    weight_decay: Weight = 0.0
    """The weight of the L2 penalty."""


class Adam(workload.Params):
    """Adam, its weight decay an L2 penalty."""

    name: Literal["adam"]
    """Chooses this optimizer."""
    lr: Lr = 0.001
    """The learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """How slowly the two moments change."""
    eps: Positive = 1e-8
    """Added to the denominator."""
    weight_decay: Weight = 0.0
    """The weight of the L2 penalty."""


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"]  # pyright: ignore[reportIncompatibleVariableOverride] - the tag is what tells them apart
    """Chooses this optimizer."""
    weight_decay: Weight = 0.01
    """The share by which weights shrink, times the learning rate."""


class SparseSgd(workload.Params):
    """Plain stochastic gradient descent on the rows that a batch touched."""

    name: Literal["sgd"]
    """Chooses this optimizer."""
    lr: Lr = 0.1
    """The learning rate."""


class SparseAdagrad(workload.Params):
    """Adagrad on the rows that a batch touched."""

    name: Literal["adagrad"]
    """Chooses this optimizer."""
    lr: Lr = 0.05
    """The learning rate."""
    initial_accumulator: Weight = 0.0
    """What the sum of squared gradients starts with."""
    eps: Positive = 1e-10
    """Added to the denominator."""


class SparseAdam(workload.Params):
    """Adam whose moments move only for the rows that a batch touched."""

    name: Literal["sparse-adam"]
    """Chooses this optimizer."""
    lr: Lr = 0.001
    """The learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """How slowly the two moments change."""
    eps: Positive = 1e-8
    """Added to the denominator."""


class LrSchedule(workload.Params):
    """A course of the learning rates."""

    shape: Literal["constant", "cosine"] = "constant"
    """`cosine` falls to zero at the job's last step."""
    warmup_steps: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Steps over which the rates first rise in a line."""

    def factor(self, step: int, steps: int) -> float:
        """What the learning rates are multiplied by at `step` (from 0) of `steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class EarlyStopping(workload.Params):
    """Ends the job when the validation loss no longer falls, and keeps the best epoch's weights."""

    patience: Epochs = 3
    """Epochs without improvement before the job ends."""


class TrainingParams(workload.Params):
    """The parameters of every job that trains in epochs."""

    epochs: Epochs = 10
    """Passes over the training data."""
    max_steps: Count | None = None
    """End after this many steps even if epochs are left."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Decides everything that is drawn: first weights, the order of the data, dropout."""
    lr_schedule: LrSchedule = LrSchedule()
    """How the learning rates move over the job's steps."""
    early_stopping: EarlyStopping | None = None
    """When to end before the last epoch; without it, never."""
    checkpoint_every_steps: Count | None = None
    """Steps between checkpoints."""
    checkpoint_every_s: Seconds | None = 60.0
    """Seconds between checkpoints; with both, whichever comes first."""


def require_shares(batch_size: int, trainers: int) -> None:
    """Raises `ValueError` if a trainer would have nothing of a global batch."""
    if batch_size < trainers:
        raise ValueError(
            f"batch_size {batch_size} is shared by {trainers} trainers; set it to {trainers} or more, "
            f"or take at most {batch_size} trainers"
        )
