"""Generates docs/metrics.md from the declarations: `python -m monitoring.reference`."""

from collections.abc import Iterator
from pathlib import Path

from monitoring.boards import BUILT_IN
from rolecall.spec.metric import WORKER_METRICS, Metric, WorkerMetric
from rolecall.workloads import catalogue

PATH = Path(__file__).parents[1] / "docs/metrics.md"
_HEAD = """# Metrics

`python -m monitoring.reference` generates this page from the code.

## Workers

Each worker measures itself. Its node exports these metrics as `rolecall_worker_<name>` with the labels `job`,
`attempt`, `role` and `rank`.

| name | type | label | meaning |
|---|---|---|---|
"""
_WORKLOADS = """
## Workloads

Each workload declares its metrics. The master exports their newest values as
`rolecall_job_metric{job,workload,metric,split}` and their final values as `rolecall_job_result`, until one hour after
the job's end. A name with `{index}` stands for several metrics. Those are only in the job's series, not in Prometheus.
"""


def page() -> str:
    """The content of docs/metrics.md."""
    workers = "".join(f"{row}\n" for row in map(_worker_row, WORKER_METRICS))
    return _HEAD + workers + _WORKLOADS + "".join(f"{line}\n" for line in _workloads())


def _worker_row(one: WorkerMetric) -> str:
    label = f"`{one.label}`: {', '.join(one.values)}" if one.label else ""
    return f"| `{one.name}` | {'counter' if one.counts else 'gauge'} | {label} | {one.help} |"


def _workloads() -> Iterator[str]:
    for name in BUILT_IN:
        yield from ("", f"### `{name}`", "", "| reported as | unit | better | meaning |", "|---|---|---|---|")
        yield from map(_metric_row, catalogue.load(name).metrics)


def _metric_row(one: Metric) -> str:
    names = ", ".join(f"`{name}`" for name in one.reported.values())
    return f"| {names} | {one.unit} | {one.direction or ''} | {one.help} |"


if __name__ == "__main__":
    PATH.write_text(page())
