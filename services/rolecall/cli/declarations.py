"""The metrics that workloads declare."""

from collections.abc import Callable, Sequence
from functools import cache

from rolecall.client import Client, UnknownName
from rolecall.spec.api import MetricDocument

MetricsOf = Callable[[str], Sequence[MetricDocument]]
"""Returns the metrics of a workload."""


def declared_metrics(client: Client) -> MetricsOf:
    """A function that asks the master once for each workload."""

    @cache
    def metrics_of(workload: str) -> Sequence[MetricDocument]:
        try:
            return client.workload(workload).metrics
        except UnknownName:  # It is no longer installed.
            return ()

    return metrics_of
