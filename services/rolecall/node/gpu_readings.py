"""The use of the node's GPUs, which the driver's program reports."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rolecall.node.devices import GpusUnknown, nvidia_smi

_QUERY = ("--query-gpu=uuid,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits")
_TIMEOUT_S = 3.0
_KNOWN_S = 5.0
"""The time for which a reading is reused, because the program takes up to a second."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU's use at one time."""

    uuid: str
    use: float | None
    """The share of time in which it computed; None for a GPU that is divided into slices."""
    used_bytes: int
    total_bytes: int


class GpuReadings:
    """Reads the use of some GPUs, at most once in a few seconds."""

    def __init__(
        self, uuids: Sequence[str], program: str = "nvidia-smi", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._uuids = frozenset(uuids)
        self._program = program
        self._clock = clock
        self._known: list[GpuReading] = []
        self._known_until = float("-inf")

    def read(self) -> list[GpuReading]:
        """The newest readings; empty on a node without GPUs, or if the driver fails, which `rolecall doctor` shows."""
        if self._uuids and self._clock() >= self._known_until:
            try:
                found = parse(nvidia_smi(self._program, *_QUERY, timeout_s=_TIMEOUT_S))
                self._known = [reading for reading in found if reading.uuid in self._uuids]
            except GpusUnknown:
                self._known = []
            self._known_until = self._clock() + _KNOWN_S
        return self._known


def parse(table: str) -> Iterator[GpuReading]:
    """The readings in the output of `nvidia-smi`, without GPUs whose memory it doesn't know (`[N/A]`)."""
    for line in table.splitlines():
        uuid, use, used, total = ([part.strip() for part in line.split(",")] + [""] * 4)[:4]
        if used.isdigit() and total.isdigit():
            share = int(use) / 100 if use.isdigit() else None
            yield GpuReading(uuid, share, int(used) * _MIB, int(total) * _MIB)
