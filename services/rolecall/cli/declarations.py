"""The metrics that workloads declare."""

from collections.abc import Sequence

from rolecall.client import Client, UnknownName
from rolecall.spec.api import MetricDocument


class Declarations:
    """The declared metrics by workload. Asks the master for each workload once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: dict[str, Sequence[MetricDocument]] = {}

    def of(self, workload: str) -> Sequence[MetricDocument]:
        """The metrics that a workload declares; none if it is no longer installed."""
        if workload not in self._found:
            try:
                self._found[workload] = self._client.workload(workload).metrics
            except UnknownName:
                self._found[workload] = ()
        return self._found[workload]
