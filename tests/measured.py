"""The measurements of this process, which all of its tests share: compare the values before and after a call."""

from rolecall.runtime.measuring import measurements
from rolecall.runtime.timeline import Timeline
from rolecall.spec.metric import WorkerMetric


def measured(*metrics: WorkerMetric, label: str = "") -> list[float]:
    """The present values; 0 of what has not been measured."""
    values = measurements.values(Timeline())
    return [values.get(one.name, {}).get(label, 0.0) for one in metrics]


def increases(before: list[float], *metrics: WorkerMetric, label: str = "") -> list[float]:
    """The differences of the present values from those before."""
    return [now - then for now, then in zip(measured(*metrics, label=label), before, strict=True)]
