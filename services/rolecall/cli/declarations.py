"""The metrics that workloads declare."""

from collections.abc import Callable, Sequence
from functools import cache

from rolecall.client import Client, UnknownName
from rolecall.spec.api import MetricDocument


def declared_metrics(client: Client) -> Callable[[str], Sequence[MetricDocument]]:
    """A function that returns the metrics of a workload, for which it asks the master once."""

    @cache
    def metrics_of(workload: str) -> Sequence[MetricDocument]:
        try:
            return client.workload(workload).metrics
        except UnknownName:  # It is no longer installed.
            return ()

    return metrics_of
