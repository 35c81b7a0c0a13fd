"""A clock for tests, which moves only when the code under test sleeps."""

import asyncio
from dataclasses import dataclass, field


@dataclass
class ManualClock:
    """Call it for the time. `pauses` are the sleeps so far; `sleep_async` lets other tasks run."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list[float])

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)
        await asyncio.sleep(0)
