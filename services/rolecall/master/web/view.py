"""The parts of the API's documents that the pages show: the cluster by role and its goodput, a gang by node,
differences of jobs, declared metrics. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, TypedDict

from rolecall.spec.api import MetricDocument, WorkloadDocument
from rolecall.spec.comparison import Row, excerpts
from rolecall.spec.job import AttemptDocument, JobOverview, Progress, WorkerDocument
from rolecall.spec.metric import INDEX, Declared, by_importance, index_in, scores
from rolecall.spec.node import NodeDocument
from rolecall.spec.numbers import number
from rolecall.spec.role import Role
from rolecall.spec.state import JobState
from rolecall.spec.visible import cut

_COMPARED_CHARS = 200
_SEAT_CHARS = 24


@dataclass(slots=True)
class RoleView:
    """The nodes of one role and their slots."""

    role: Role
    nodes: list[NodeDocument] = field(default_factory=list[NodeDocument])

    @property
    def alive(self) -> int:
        return sum(node.alive for node in self.nodes)

    @property
    def slots(self) -> int:
        """The slots of its live nodes."""
        return sum(node.spec.slots for node in self.nodes if node.alive)

    @property
    def used(self) -> int:
        """The slots with workers among them."""
        return sum(len(node.workers) for node in self.nodes if node.alive)


def cluster_view(nodes: Iterable[NodeDocument]) -> list[RoleView]:
    """The nodes by role, in the order of the roles."""
    roles = {role: RoleView(role) for role in Role}
    for node in nodes:
        roles[node.spec.role].nodes.append(node)
    return [view for view in roles.values() if view.nodes]


def seat_labels(jobs: Iterable[JobOverview]) -> dict[str, str]:
    """Short names of the jobs with workers: an id, if there is no name or another one of them has the same."""
    seated = {job.id: cut(job.name, _SEAT_CHARS) for job in jobs if job.state.holds_slots}
    counts = Counter([*seated, *seated.values()])
    return {id_: name if name and counts[name] == 1 else id_ for id_, name in seated.items()}


def mean_goodput(jobs: Iterable[JobOverview]) -> float | None:
    """The mean goodput of the running ones of the jobs, weighted by their slots; None if none of them reports it."""
    running = [job for job in jobs if job.state is JobState.RUNNING]
    found = [(job.goodput, sum(job.roles.values())) for job in running if job.goodput is not None]
    slots = sum(weight for _, weight in found)
    return sum(goodput * weight for goodput, weight in found) / slots if slots else None


class MainValue(NamedTuple):
    """The value that says best how good a job's model is."""

    name: str
    value: float
    direction: Literal["higher", "lower"] | None


def main_value(progress: Progress, declared: Iterable[Declared]) -> MainValue | None:
    """The first score, as in `rolecall jobs`, or else the loss; None if nothing is reported."""
    for score in scores(declared, progress.metrics):
        return MainValue(score.name, progress.metrics[score.name], score.direction)
    return None if progress.loss is None else MainValue("loss", progress.loss, None)


def run_time_s(attempts: Iterable[AttemptDocument], now: datetime) -> float:
    """The seconds in which a job had workers: the sum of its attempts, without its time in the queue and its pauses."""
    return sum(max(0.0, ((one.ended_at or now) - one.started_at).total_seconds()) for one in attempts)


def by_node(workers: Iterable[WorkerDocument]) -> dict[str, list[WorkerDocument]]:
    """The workers of an attempt by node, in the order of their ranks."""
    nodes: dict[str, list[WorkerDocument]] = {}
    for worker in sorted(workers, key=lambda worker: worker.rank):
        nodes.setdefault(worker.node, []).append(worker)
    return nodes


def readable(row: Row) -> Row:
    """A row of a comparison with the differing parts of long texts, and the numbers of results as the pages show them.

    Parameters keep all their digits.
    """
    values = excerpts(row.values, _COMPARED_CHARS)
    if row.name.startswith("result."):
        values = [value and number(_parsed(value)) for value in values]
    return Row(cut(row.name, _COMPARED_CHARS), values)


def _parsed(value: str) -> object:
    """The number or the null in a JSON text, or the text."""
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if found is None or isinstance(found, int | float) else value


@dataclass(frozen=True, slots=True)
class Figures:
    """The numbers that a job reports."""

    single: dict[str, float | None] = field(default_factory=dict[str, float | None])
    """None stands for a number that isn't finite."""
    families: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """Those of indexed metrics by the declared name, such as `micro_batch_{index}_loss`, in the order of the index."""


def figures(values: Mapping[str, object], metrics: Iterable[MetricDocument]) -> Figures:
    """The numbers among a job's values. Only two or more members of an indexed metric are a family."""
    single: dict[str, float | None] = {
        name: value for name, value in values.items() if value is None or isinstance(value, int | float)
    }
    families: dict[str, dict[str, float]] = {}
    for declared in (name for metric in metrics for name in metric.reported.values() if INDEX in name):
        members = {name: value for name, value in single.items() if value is not None}
        indices = {name: int(index) for name in members if (index := index_in(name, declared))}
        if len(indices) > 1:
            families[declared] = {name: members[name] for name in sorted(indices, key=indices.__getitem__)}
            single = {name: value for name, value in single.items() if name not in indices}
    return Figures(single, families)


def without(values: Mapping[str, object], others: Mapping[str, object]) -> dict[str, object]:
    """The values whose names `others` lacks."""
    return {name: value for name, value in values.items() if name not in others}


class DeclaredMetric(TypedDict):
    """The description of a value that the curves show."""

    name: str
    """As reported. `{index}` stands for a number."""
    help: str
    unit: str
    direction: str | None


def declared_metrics(workloads: Iterable[WorkloadDocument | None]) -> list[DeclaredMetric]:
    """The values that the workloads report, the first declaration of each; None is a workload that is gone.

    Those with a direction come first, by importance, because they say whether a job trains well. The others follow in
    the declared order.
    """
    metrics = [metric for workload in workloads if workload for metric in workload.metrics]
    found: dict[str, DeclaredMetric] = {}
    for metric in metrics:
        for name in metric.reported.values():
            one = DeclaredMetric(name=name, help=metric.help, unit=metric.unit, direction=metric.direction)
            found.setdefault(name, one)
    return [found[name] for name in dict.fromkeys([*by_importance(metrics), *found])]


def declaration(metrics: Iterable[DeclaredMetric], name: str) -> DeclaredMetric:
    """The declaration of a reported or a declared name; one without text if there is none."""
    known = (one for one in metrics if name == one["name"] or index_in(name, one["name"]) is not None)
    return next(known, DeclaredMetric(name=name, help="", unit="", direction=None))
