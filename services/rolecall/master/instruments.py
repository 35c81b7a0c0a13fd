"""The histograms and counters that the master's parts fill. `metrics` computes all others at a scrape."""

from functools import partial
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_WAIT_BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000, 10000)
_CALL_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class Instruments:
    """One of each for a master, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.placement = Histogram(
            "rolecall_placement_seconds",
            "Seconds from a job's entering the queue to the plan for its gang.",
            registry=self.registry,
            buckets=_WAIT_BUCKETS_S,
        )
        of_calls = partial(Histogram, registry=self.registry, buckets=_CALL_BUCKETS_S)
        self._requests = of_calls(
            "rolecall_api_request_seconds",
            "Seconds from a call to the start of its response, without calls that wait for news.",
            ("method", "route", "status"),
        )
        self._database = of_calls(
            "rolecall_database_seconds",
            "Seconds of a transaction, waiting for a connection included.",
            ("access",),
        )
        self._blob_store = of_calls("rolecall_blob_store_seconds", "Seconds of a call to the blob store.")
        self.hung_calls = Gauge(
            "rolecall_blob_store_hung_calls",
            "Calls to the blob store that take longer than ROLECALL_BLOB_TIMEOUT_S.",
            registry=self.registry,
        )
        self._exports = Counter(
            "rolecall_exports",
            "Tries to export a job to another program, by target (trace, tensorboard, mlflow) and outcome.",
            ("target", "outcome"),
            registry=self.registry,
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record an answered call; `route` is the path's template, such as `/jobs/{job}`."""
        self._requests.labels(method, route, f"{status // 100}xx").observe(seconds)

    def transaction(self, access: str, seconds: float) -> None:
        """Record a transaction; `access` is `read` or `write`."""
        self._database.labels(access).observe(seconds)

    def blob_store_call(self, seconds: float) -> None:
        """Record a call to the blob store; called by its threads."""
        self._blob_store.observe(seconds)

    def export(self, target: str, outcome: Literal["accepted", "rejected", "dropped"]) -> None:
        """Record a try to export a job."""
        self._exports.labels(target, outcome).inc()
