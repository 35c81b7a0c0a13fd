"""The delays of the event loop. A busy master reads the calls of nodes late, so their silence has another cause."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable

_EVERY_S = 0.1
_NORMAL_S = 0.1
"""Shorter delays don't add up to a timeout: a heartbeat takes about ten passes of the loop."""


class Lag:
    """Measures the delays of the event loop of the last `remember_s` seconds."""

    def __init__(self, remember_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._remember_s = remember_s
        self._clock = clock
        self._due: float | None = None
        self._delays: deque[tuple[float, float]] = deque(maxlen=math.ceil(remember_s / _NORMAL_S) + 1)
        """The times at which delays ended, and their seconds. Older ones than the last `remember_s` may remain."""

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._due = self._clock() + _EVERY_S
            await asyncio.sleep(_EVERY_S)
            now = self._clock()
            if (delay_s := now - self._due) > _NORMAL_S:
                self._delays.append((now, delay_s))

    def recent_s(self) -> float:
        """The sum of the recent delays, including the current one."""
        now = self._clock()
        while self._delays and self._delays[0][0] < now - self._remember_s:
            self._delays.popleft()
        current_s = now - self._due if self._due is not None else 0.0
        return sum(delay_s for _, delay_s in self._delays) + (current_s if current_s > _NORMAL_S else 0.0)
