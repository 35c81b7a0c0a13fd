"""The use of the node's GPUs, which the driver reports."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from rolecall.logs import OncePerReason, about
from rolecall.node.devices import GpusUnknown, ask_driver

_LOG = logging.getLogger(__name__)
_LIMIT_S = 3.0
_KNOWN_S = 5.0
"""The time for which a reading is reused, because each starts a process."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU's use at one time."""

    uuid: str
    use: float | None
    """The share of time in which it computed; None for a GPU that is divided into slices."""
    used_bytes: int
    total_bytes: int


_READINGS = TypeAdapter(list[GpuReading])


class GpuReadings:
    """Reads the use of some GPUs, at most once in a few seconds."""

    def __init__(self, uuids: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._uuids = frozenset(uuids)
        self._clock = clock
        self._known: list[GpuReading] = []
        self._known_until = float("-inf")
        self._failures = OncePerReason()

    def read(self) -> list[GpuReading]:
        """The newest readings; empty on a node without GPUs, and while the driver fails, which the log says."""
        if self._uuids and self._clock() >= self._known_until:
            try:
                found = ask_driver("use", _READINGS, _LIMIT_S)
                self._known = [reading for reading in found if reading.uuid in self._uuids]
                self._failures.end()
            except GpusUnknown as error:
                self._known = []
                if self._failures.is_new(str(error)):
                    _LOG.warning("the use of the GPUs is unknown: %s", error, extra=about("gpu_use_unknown"))
            self._known_until = self._clock() + _KNOWN_S
        return self._known
