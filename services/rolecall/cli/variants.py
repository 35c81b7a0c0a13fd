"""The jobs of a sweep, and the comparison of their metrics. Pure."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal, TypeGuard

from rolecall.cli.exits import CommandError, Exit
from rolecall.cli.job_file import Job, with_value
from rolecall.client.chart import Chart, ChartSeries, Point
from rolecall.spec.api import MetricDocument, WorkloadDocument
from rolecall.spec.job import JobDocument
from rolecall.spec.metric import index_in
from rolecall.spec.similar import most_similar
from rolecall.spec.state import JobState

MAX_VARIANTS = 1000
_MAX_NUMBER = 1e300
"""The largest number in comparisons and charts, so that sums and differences of a few are finite."""
_START = "start_s"
"""The time from the plan to the first step, which the master measures for every workload."""
_UNITS = frozenset({"s", "ms", "bytes"})
Setting = tuple[str, tuple[Any, ...]]
"""A path in the job, and the values to compare."""
Direction = Literal["higher", "lower"]
"""The direction of better values."""
SAMPLES_PER_S = "samples_per_s"
"""The speed that the kit measures for every workload."""
_MEASURED: Mapping[str, Direction] = MappingProxyType({SAMPLES_PER_S: "higher", _START: "lower"})
"""Rates and times that Rolecall measures. No workload declares them, which would make them scores of a model."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The mean of a metric over the runs of a variant, and the sample standard deviation."""

    mean: float
    deviation: float | None
    """None for a single run."""
    runs: int


@dataclass(slots=True)
class Variant:
    """A job with one combination of the values, and its runs."""

    values: dict[str, Any]
    """By path."""
    job: Job
    runs: list[JobDocument] = field(default_factory=list[JobDocument])

    @property
    def title(self) -> str:
        return ", ".join(f"{short(path)}={shown(value)}" for path, value in self.values.items())

    def spread(self, metric: str) -> Spread | None:
        """The metric over the runs that succeeded; None if no run has it, or if a result has one that isn't finite."""
        succeeded = [run for run in self.runs if run.state is JobState.SUCCEEDED]
        numbers = [value for run in succeeded if (value := metrics(run).get(metric)) is not None]
        # A mean without the diverged runs could be the best one.
        if not numbers or self.diverged(metric):
            return None
        return Spread(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))

    def diverged(self, metric: str) -> bool:
        """Return whether the result of a run that succeeded has a value of the metric that isn't finite."""
        return any(scores(run).get(metric, 0.0) is None for run in self.runs if run.state is JobState.SUCCEEDED)


def variants(job: Job, settings: Sequence[Setting]) -> list[Variant]:
    """A variant for each combination of the values; those of the last setting change fastest."""
    for index, (path, values) in enumerate(settings):
        if path in [earlier for earlier, _ in settings[:index]]:
            raise CommandError(Exit.USAGE, f"--set {path} is given twice; write all values as --set {path}=A,B")
        texts = [shown(value) for value in values]
        if again := [text for text in texts if texts.count(text) > 1]:
            raise CommandError(Exit.USAGE, f"--set {path}: {again[0]} is given twice; for several runs, use --repeat")
    count = math.prod(len(values) for _, values in settings)
    if count > MAX_VARIANTS:
        raise CommandError(
            Exit.USAGE, f"the sweep has {count} combinations of values; at most {MAX_VARIANTS} are valid"
        )
    paths = [path for path, _ in settings]
    return [_variant(job, paths, chosen) for chosen in product(*(values for _, values in settings))]


def metrics(job: JobDocument) -> dict[str, float]:
    """The numbers of the job's result, and those of its progress that the result doesn't have."""
    progress = job.progress
    latest = {"loss": progress.loss, _START: progress.start_s and progress.start_s.total}
    found = progress.metrics | latest | (job.result or {})
    return {name: float(value) for name, value in found.items() if _is_number(value)}


def scores(job: JobDocument) -> dict[str, float | None]:
    """The metrics, and None for each value of the result that isn't finite, for which JSON has null."""
    return metrics(job) | {name: None for name, value in (job.result or {}).items() if value is None}


def check_metric(metric: str, workload: WorkloadDocument) -> None:
    """Raise `CommandError` if a job of this workload can't have the metric. Any is possible without declarations."""
    declared = [name for one in workload.metrics for name in one.reported.values()]
    valid = [*declared, _START]
    if declared and all(index_in(metric, name) is None for name in valid):
        near = most_similar(metric, valid)
        hint = f"; did you mean {near!r}?" if near else ";"
        raise CommandError(
            Exit.USAGE,
            f"--metric {metric}: {workload.name} declares no metric {metric!r}{hint} valid: {', '.join(sorted(valid))}",
        )


def direction(declared: Iterable[MetricDocument], metric: str) -> Direction | None:
    """The direction in which values of a reported metric are better: the declared one, or for rates and times that
    Rolecall measures, its own. None if the workloads declare several, or if there is none.
    """
    found: set[Direction | None] = {
        one.direction for one in declared if any(index_in(metric, name) is not None for name in one.reported.values())
    }
    if not found - {None}:
        return _MEASURED.get(metric)
    return found.pop() if len(found) == 1 else None


def best(done: Sequence[Variant], metric: str, better: Direction) -> list[int]:
    """The places of the variants with the best mean of the metric; none if fewer than two variants have one."""
    means = {place: spread.mean for place, one in enumerate(done) if (spread := one.spread(metric))}
    if len(means) < 2:
        return []
    top = max(means.values()) if better == "higher" else min(means.values())
    return [place for place, mean in means.items() if mean == top]


def chart(done: Sequence[Variant], settings: Sequence[Setting], metric: str) -> Chart | None:
    """The metric over the first setting, with a series for each combination of the others; None without any value."""
    measured = [(variant, spread) for variant in done if (spread := variant.spread(metric))]
    if not measured:
        return None
    (axis, _), others = settings[0], settings[1:]
    given = [value for value in settings[0][1] if any(variant.values[axis] == value for variant, _ in measured)]
    points: dict[str, list[Point]] = {}
    for variant, spread in measured:
        label = ", ".join(f"{short(path)}={shown(variant.values[path])}" for path, _ in others)
        point = Point(given.index(variant.values[axis]), spread.mean, spread.deviation or 0.0)
        points.setdefault(label, []).append(point)
    numeric = all(map(_is_number, given))
    first = measured[0][0].runs[0]
    return Chart(
        title=first.name or first.workload,
        note=_note([spread.runs for _, spread in measured]),
        x_title=short(axis),
        y_title=_y_title(metric),
        x_values=tuple(given) if numeric else tuple(map(shown, given)),
        series=tuple(ChartSeries(label, tuple(found)) for label, found in points.items()),
    )


def short(path: str) -> str:
    """The path without `params.`, for headings and axes."""
    return path.removeprefix("params.")


def shown(value: Any) -> str:
    """A value as on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def _is_number(value: Any) -> TypeGuard[int | float]:
    """True for numbers that can be compared; the integers of JSON have any size."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER


def _variant(job: Job, paths: Sequence[str], chosen: Sequence[Any]) -> Variant:
    values = dict(zip(paths, chosen, strict=True))
    for path, value in values.items():
        job = with_value(job, path, value)
    return Variant(values, job)


def _note(runs: Sequence[int]) -> str:
    most = max(runs)
    if most == 1:
        return "one run each"
    return f"mean of {'up to ' if min(runs) < most else ''}{most} runs; bars: ± one standard deviation"


def _y_title(metric: str) -> str:
    """The name of the metric with its unit, which is the end of the name: `samples/s`, `wall (s)`, `test loss`."""
    name, _, unit = metric.rpartition("_")
    if metric.endswith("_per_s"):
        return f"{_words(metric.removesuffix('_per_s'))}/s"
    return f"{_words(name)} ({unit})" if name and unit in _UNITS else _words(metric)


def _words(name: str) -> str:
    return name.replace("_", " ")
