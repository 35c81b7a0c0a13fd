"""Metrics: those that workloads declare, and those that every worker records about itself.

Names follow Prometheus's rules: a snake-case name with its base unit, and `_total` for counters.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import zip_longest
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from rolecall.spec.timeline import ACTIVITIES

_NAME = re.compile(r"[a-z][a-z0-9]*(_([a-z0-9]+|\{index\}))*")
INDEX = "{index}"
"""The part of a declared name that stands for a number in the reported ones."""
MAX_DECLARED = 100
"""The maximum number of metrics that a workload may declare."""


class Split(StrEnum):
    """The data on which a metric is measured."""

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"
    EVALUATION = "evaluation"
    """Episodes that a policy plays to be evaluated."""


EVALUATED = (Split.VALIDATION, Split.TEST)


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a workload reports, by the declaration in its torch-free `__init__`.

    A metric of split `train` is reported by its own name; of another split, by `<split>_<name>`, such as
    `validation_auc`. Raises `ValueError` for a name that Prometheus's rules don't allow.
    """

    name: str
    """In snake case. `{index}` stands for a number, as in `observer_{index}_return`: such a metric is in the series,
    but not in Prometheus, which must stay small."""
    help: str
    """One sentence."""
    unit: str = ""
    """A base unit such as `seconds`, `bytes` or `nats`; empty for numbers without one."""
    direction: Literal["higher", "lower"] | None = None
    """The direction of better values, if there is one."""
    splits: tuple[Split, ...] = (Split.TRAIN,)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"metric {self.name!r}: use lowercase letters, digits and underscores, starting with a letter, and "
                "{index} for a number"
            )
        if not self.splits or len(set(self.splits)) < len(self.splits):
            raise ValueError(f"metric {self.name!r}: name at least one split, and none twice")

    @property
    def indexed(self) -> bool:
        """True if the name stands for several metrics."""
        return INDEX in self.name

    @property
    def reported(self) -> dict[Split, str]:
        """The name that the workload reports for each split."""
        return {split: self.name if split is Split.TRAIN else f"{split}_{self.name}" for split in self.splits}


class Declared(Protocol):
    """A metric, or the document of one."""

    @property
    def direction(self) -> Literal["higher", "lower"] | None: ...

    @property
    def reported(self) -> dict[Split, str]: ...


def by_importance(declared: Iterable[Declared]) -> list[str]:
    """The reported names of metrics with a direction: the loss, then what should rise, then what should fall.

    Of what should rise, evaluated metrics and those of training alternate, so that the first two show how good the
    model is and how it gets there.
    """
    directed = [(one.direction, *reported) for one in declared if one.direction for reported in one.reported.items()]
    evaluated = [name for to, split, name in directed if to == "higher" and split is not Split.TRAIN]
    trained = [name for to, split, name in directed if to == "higher" and split is Split.TRAIN]
    falling = [name for to, _, name in directed if to == "lower"]
    alternating = (name for pair in zip_longest(evaluated, trained) for name in pair if name is not None)
    return sorted([*alternating, *falling], key=lambda name: name != "loss")


class Score(NamedTuple):
    """A reported metric with a direction, which says how good a model is."""

    split: Split
    name: str
    """As reported."""
    direction: Literal["higher", "lower"]


def scores(declared: Iterable[Declared], reported: Collection[str]) -> list[Score]:
    """The evaluated metrics among the reported ones, first those that should rise.

    Without any, those of training that should rise.
    """
    found = [
        Score(split, name, one.direction)
        for one in declared
        if one.direction
        for split, name in one.reported.items()
        if name in reported
    ]
    evaluated = [score for score in found if score.split is not Split.TRAIN]
    return sorted(evaluated, key=lambda score: score.direction != "higher") or [
        score for score in found if score.direction == "higher"
    ]


def index_in(reported: str, declared: str) -> str | None:
    """The number in a reported name of a declared one, such as `3` in `observer_3_return` of `observer_{index}_return`.

    Empty if the declared name has none, and None if the reported name is not of this metric.
    """
    found = _pattern(declared).fullmatch(reported)
    return found and "".join(found.groups())


@cache
def _pattern(declared: str) -> re.Pattern[str]:
    return re.compile(re.escape(declared).replace(re.escape(INDEX), r"(\d+)"))


@dataclass(frozen=True, slots=True)
class MetricPlace:
    """The labels of a reported name in Prometheus."""

    metric: str
    split: Split


def places(metrics: Sequence[Metric]) -> Mapping[str, MetricPlace]:
    """The labels of each reported name, without indexed metrics.

    Raises `ValueError` if two metrics are reported by the same name, or if there are more than `MAX_DECLARED`.
    """
    if len(metrics) > MAX_DECLARED:
        raise ValueError(f"{len(metrics)} metrics are declared; declare at most {MAX_DECLARED}")
    found: dict[str, MetricPlace] = {}
    for metric in metrics:
        for split, name in metric.reported.items():
            if name in found:
                raise ValueError(f"two metrics are reported as {name!r}; give each one name and split of its own")
            found[name] = MetricPlace(metric.name, split)
    indexed = {name for metric in metrics if metric.indexed for name in metric.reported.values()}
    return MappingProxyType({name: place for name, place in found.items() if name not in indexed})


PEERS = ("master", "parameter-server", "trainer", "stage", "observer")
"""The roles of the other end of an RPC call."""


@dataclass(frozen=True, slots=True)
class WorkerMetric:
    """A number that workers record about themselves; `rolecall_worker_<name>` in Prometheus."""

    name: str
    """A name that ends in `_total` is a counter, any other a gauge."""
    help: str
    label: str = ""
    """A label besides the worker's own, if there is one."""
    values: tuple[str, ...] = ("",)
    """All values of that label."""

    @property
    def counts(self) -> bool:
        """True for a counter."""
        return self.name.endswith("_total")


TIME = WorkerMetric("time_seconds_total", "Time of the worker's main thread by activity.", "activity", ACTIVITIES)
STEPS = WorkerMetric("steps_total", "Optimizer steps in which the worker took part.")
RPC_CALLS = WorkerMetric("rpc_calls_total", "RPC calls that were answered, by the other worker's role.", "peer", PEERS)
RPC_SECONDS = WorkerMetric("rpc_seconds_total", "Total time from call to response.", "peer", PEERS)
RPC_SENT = WorkerMetric("rpc_sent_bytes_total", "Bytes of tensors in the arguments of calls.", "peer", PEERS)
RPC_RECEIVED = WorkerMetric("rpc_received_bytes_total", "Bytes of tensors in the responses.", "peer", PEERS)
LOOK_UP_IDS = WorkerMetric(
    "look_up_ids_total", "Ids that a trainer looked up on parameter servers, without those of bags that servers pool."
)
LOOK_UP_SENT = WorkerMetric("look_up_sent_ids_total", "Distinct ids of these look-ups, which are the ones sent.")
SERVED_CALLS = WorkerMetric("served_calls_total", "Calls of its shards' modules that a parameter server answered.")
SERVED_ROWS = WorkerMetric("served_rows_total", "Rows of the inputs of these calls, such as ids to look up.")
SERVED_SECONDS = WorkerMetric("served_seconds_total", "Time that the server spent in these calls.")
UPDATES = WorkerMetric("updates_total", "Optimizer steps of a parameter server's shards.")
UPDATE_SECONDS = WorkerMetric("update_seconds_total", "Time of these steps, including the mean of the gradients.")
TABLE_BYTES = WorkerMetric("table_bytes", "Memory of the weights of a parameter server's shards.")
IN_FLIGHT = WorkerMetric("micro_batches_in_flight", "Maximum number of micro-batches whose activations a stage holds.")
ENV_STEPS = WorkerMetric("environment_steps_total", "Steps of an observer's environments, without evaluations.")
POLICY_LAG = WorkerMetric("policy_lag_updates", "Updates of the agent since the weights of the newest rollouts.")
INFERENCE_CALLS = WorkerMetric("inference_requests_total", "Requests for actions that the agent answered.")
INFERENCE_BATCHES = WorkerMetric("inference_batches_total", "Batches in which the agent answered these requests.")
INFERENCE_SECONDS = WorkerMetric(
    "inference_seconds_total", "Total time of these requests from their arrival at the agent to the answer."
)
CHECKPOINTS = WorkerMetric("checkpoint_parts_total", "Parts of checkpoints that the worker wrote.")
CHECKPOINT_SECONDS = WorkerMetric("checkpoint_write_seconds_total", "Time to write and store these parts.")
CHECKPOINT_BYTES = WorkerMetric("checkpoint_bytes", "Size of the newest part.")
GPU_MEMORY = WorkerMetric("gpu_memory_bytes", "GPU memory of the worker's tensors.")
GPU_MEMORY_PEAK = WorkerMetric("gpu_memory_peak_bytes", "Maximum GPU memory of the worker's tensors.")

WORKER_METRICS = (
    TIME,
    STEPS,
    RPC_CALLS,
    RPC_SECONDS,
    RPC_SENT,
    RPC_RECEIVED,
    LOOK_UP_IDS,
    LOOK_UP_SENT,
    SERVED_CALLS,
    SERVED_ROWS,
    SERVED_SECONDS,
    UPDATES,
    UPDATE_SECONDS,
    TABLE_BYTES,
    IN_FLIGHT,
    ENV_STEPS,
    POLICY_LAG,
    INFERENCE_CALLS,
    INFERENCE_BATCHES,
    INFERENCE_SECONDS,
    CHECKPOINTS,
    CHECKPOINT_SECONDS,
    CHECKPOINT_BYTES,
    GPU_MEMORY,
    GPU_MEMORY_PEAK,
)
