"""Parameters that several workloads share. Torch-free; docstrings are the API's descriptions.

Every number, string and list has an upper bound. The bounds keep the master's checks short and arithmetic within 64
bits. They are far above what a cluster of thousands of GPUs needs, and are no recommendations.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field

from rolecall.kit import data_access
from rolecall.spec import workload

Count = Annotated[int, Field(ge=1, le=2**40)]
"""A count of sequential work, such as steps or rows."""
Epochs = Annotated[int, Field(ge=1, le=2**24)]
BatchSize = Annotated[int, Field(ge=1, le=2**32)]
"""Samples per step over all workers; the bound keeps the search for its divisors short."""
Replicas = Annotated[int, Field(ge=1, le=4096)]
Width = Annotated[int, Field(ge=1, le=2**20)]
"""The width of a layer."""
Positive = Annotated[float, Field(gt=0, le=1e12)]
Weight = Annotated[float, Field(ge=0, le=1e12)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Lr = Annotated[float, Field(gt=0, le=1e6)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(max_length=1024)]
"""The name of a column, a class or a block."""
Names = Annotated[list[Name], Field(max_length=50_000, fail_fast=True)]
Value = Text | Annotated[int, Field(ge=-(2**63), lt=2**64)] | Annotated[float, Field(ge=-1e308, le=1e308)] | bool
Precision = Literal["float32", "float64", "bfloat16"]
"""See `rolecall.kit.precision`."""


def to_tuple(given: Any) -> Any:
    """Convert a list to a tuple; pydantic does this for JSON, but not after another `BeforeValidator`."""
    return tuple(cast(list[Any], given)) if isinstance(given, list) else given


Widths = Annotated[tuple[Width, ...], Field(max_length=1024), BeforeValidator(to_tuple)]


def _renamed(given: Any) -> Any:
    if given == "seed":
        raise ValueError('"seed" was renamed: use "tutorial"')
    return given


RenamedProtocol = BeforeValidator(_renamed)
"""For a `protocol` with the value `tutorial`: the error for its old name contains the new name."""


def to_object(field: str) -> Callable[[Any], Any]:
    """A validator that accepts a string for an object with only this field."""
    return lambda given: {field: given} if isinstance(given, str) else given


def to_list(given: Any) -> Any:
    """Convert a single value to a list of one."""
    return [given] if isinstance(given, str | int | float | bool) else given


_AnyPath = Annotated[str, Field(min_length=1, max_length=4096)]
DataPath = Annotated[_AnyPath, AfterValidator(data_access.DataPath)]
"""A path or URL of input data; Linux does not support longer paths."""
Paths = Annotated[
    list[DataPath],
    Field(min_length=1, max_length=50_000),
    BeforeValidator(
        to_list, json_schema_input_type=_AnyPath | Annotated[list[_AnyPath], Field(min_length=1, max_length=50_000)]
    ),
]


class Sgd(workload.Params):
    """Stochastic gradient descent."""

    name: Literal["sgd"]
    """Selects this optimizer."""
    lr: Lr = 0.1
    """Learning rate."""
    momentum: Fraction = 0.0
    """Momentum factor."""
    weight_decay: Weight = 0.0
    """Coefficient of the L2 penalty."""


class Adam(workload.Params):
    """Adam with weight decay as an L2 penalty."""

    name: Literal["adam"]
    """Selects this optimizer."""
    lr: Lr = 0.001
    """Learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of the running averages of the gradient and of its square."""
    eps: Positive = 1e-8
    """Term added to the denominator for numerical stability."""
    weight_decay: Weight = 0.0
    """Coefficient of the L2 penalty."""


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"]  # pyright: ignore[reportIncompatibleVariableOverride] - the tag distinguishes the classes
    """Selects this optimizer."""
    weight_decay: Weight = 0.01
    """Coefficient of the decoupled weight decay: each step shrinks the weights by this times the learning rate."""


class SparseSgd(workload.Params):
    """Plain stochastic gradient descent on the rows that a batch uses."""

    name: Literal["sgd"]
    """Selects this optimizer."""
    lr: Lr = 0.1
    """Learning rate."""


class SparseAdagrad(workload.Params):
    """Adagrad on the rows that a batch uses."""

    name: Literal["adagrad"]
    """Selects this optimizer."""
    lr: Lr = 0.05
    """Learning rate."""
    initial_accumulator: Weight = 0.0
    """Initial value of the sum of squared gradients."""
    eps: Positive = 1e-10
    """Term added to the denominator for numerical stability."""


class SparseAdam(workload.Params):
    """Adam that updates its moments only for the rows that a batch uses."""

    name: Literal["sparse-adam"]
    """Selects this optimizer."""
    lr: Lr = 0.001
    """Learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of the running averages of the gradient and of its square."""
    eps: Positive = 1e-8
    """Term added to the denominator for numerical stability."""


class LrSchedule(workload.Params):
    """A learning rate schedule."""

    shape: Literal["constant", "cosine"] = "constant"
    """`constant` keeps the learning rate; `cosine` decays it to zero at the job's last step."""
    warmup_steps: Annotated[int, Field(ge=0, le=2**40)] = 0
    """Number of steps of linear warmup."""

    def factor(self, step: int, steps: int) -> float:
        """The factor of the learning rates at `step` (from 0) of `steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class EarlyStopping(workload.Params):
    """Ends the job when the validation loss stops improving, and keeps the best epoch's weights."""

    patience: Epochs = 3
    """Number of epochs without improvement before the job ends."""


class TrainingParams(workload.Params):
    """The parameters of every job that trains in epochs."""

    epochs: Epochs = 10
    """Number of passes over the training data."""
    max_steps: Count | None = None
    """Maximum number of steps; the job ends after it even if epochs remain."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random values: initial weights, the order of the data, dropout."""
    lr_schedule: LrSchedule = LrSchedule()
    """Schedule of the learning rates over the job's steps."""
    early_stopping: EarlyStopping | None = None
    """Condition to end before the last epoch; off by default."""
    checkpoint_every_steps: Count | None = None
    """Number of steps between checkpoints."""
    checkpoint_every_s: Seconds | None = 60.0
    """Seconds between checkpoints. If `checkpoint_every_steps` is set too, whichever comes first applies."""


MAX_RPC_THREADS = 512
"""All threads exist from the start, and the processes of a machine share its limit of threads, often 32,768."""


class Rpc(workload.Params):
    """Remote procedure calls between the workers of a job."""

    threads: Annotated[int, Field(ge=16, le=MAX_RPC_THREADS)] | None = None
    """Number of threads of each worker that serve calls. By default 16, or as many as the job needs. A gang of more
    than half as many workers gets two for each of them."""
    timeout_s: Annotated[float, Field(ge=5, le=86_400)] = 600.0
    """Seconds after which a call of a training step fails, and with it the attempt. It must be longer than the longest
    step, because a call can wait for the rest of its step. Building the model, checkpoints and exports have no such
    limit. A worker that dies is noticed immediately, without this limit."""


def changed(params: workload.Params, names: Iterable[str]) -> Iterator[str]:
    """Those of the parameters `names` that have other values than their defaults."""
    fields = type(params).model_fields
    return (name for name in names if getattr(params, name) != fields[name].default)


def require_shares(batch_size: int, trainers: int) -> None:
    """Raises `ValueError` if a trainer would get no sample of a global batch."""
    if batch_size < trainers:
        raise ValueError(
            f"batch_size {batch_size} is shared by {trainers} trainers; set it to {trainers} or more, "
            f"or use at most {batch_size} trainers"
        )


def check_precision(precision: Precision) -> None:
    """Raises `InputError`, with the name of the device, if this worker's does not support `precision`.

    For `check_node`, so that the job fails before its gang's rendezvous.
    """
    if precision == "bfloat16":
        # The master imports this file, which therefore must not import torch.
        from rolecall.kit.precision import require_precision, worker_device  # noqa: PLC0415

        require_precision(precision, worker_device())
