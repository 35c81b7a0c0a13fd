"""The node's part in an inspection: the relation of its clock to the master's."""

from collections.abc import Iterator

import pytest

from rolecall.node.client import MasterClient
from rolecall.node.inspecting import measure_clock
from rolecall.spec.wire import ClusterInfo


class _Client(MasterClient):
    """A client whose master gives these readings of its clock."""

    def __init__(self, readings: Iterator[float | None]) -> None:
        self._readings = readings

    async def cluster(self, name: str) -> ClusterInfo:
        return ClusterInfo(time_s=0.0, version="1", remote_nodes=0, monotonic_s=next(self._readings))


async def test_the_fastest_of_five_calls_gives_the_offset_and_its_uncertainty() -> None:
    took_s = (0.5, 0.25, 4.0, 0.125, 1.0)
    here = iter([float(one) for call, took in enumerate(took_s) for one in (call * 10, call * 10 + took)])
    there = iter([100.0 + call * 10 for call in range(5)])
    assert await measure_clock(_Client(there), "n", here.__next__) == {
        "offset_s": pytest.approx(100.0 - 0.0625),
        "uncertainty_s": 0.0625,
    }


async def test_there_is_no_offset_to_a_master_that_does_not_tell_its_clock() -> None:
    assert await measure_clock(_Client(iter([None])), "n", lambda: 0.0) == {}
