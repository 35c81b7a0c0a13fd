"""Limits on storage: the reserve of free space on the master's volume, and each job's part of the blob store."""

import asyncio
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from rolecall.spec.api import Volume
from rolecall.spec.errors import QuotaExceeded, RolecallError

_SHARE, _MAX_RESERVE = 0.05, 2 << 30
USERS_FLOOR = 1 / 2
"""The share of the reserve that users' calls leave to reports, and to calls that free space."""
REPORTS_FLOOR = 1 / 4
"""The share of the reserve that only the database uses."""
_KNOWN_S = 1.0
"""The time for which the free space of the volume is cached."""


class NoRoom(RolecallError):
    """The master's volume has no space above its reserve. The same request succeeds when it has."""


class Reserve:
    """Keeps a part of a volume free, so that the database and the workers' reports always have space.

    The free space is read at most once a second, in a thread. In between, admitted bytes are counted.
    """

    def __init__(self, folder: Path, reserve: int | None, now: Callable[[], float]) -> None:
        self._folder = folder
        self._reserve = reserve
        self._now = now
        self._asking = asyncio.Lock()
        self._known: tuple[float, Volume] | None = None
        self._admitted = 0

    async def volume(self) -> Volume:
        """The state of the volume, at most a second old."""
        async with self._asking:
            if self._known is None or self._now() - self._known[0] > _KNOWN_S:
                counted = self._admitted
                self._known = self._now(), await asyncio.to_thread(self._ask)
                self._admitted -= counted
            return self._known[1]

    async def check(self, wanted: int = 0, *, share: float = 1.0) -> None:
        """Raise `NoRoom` if `wanted` more bytes would leave less than `share` of the reserve."""
        volume = await self.volume()
        free = max(0, volume.free - self._admitted)
        if free - wanted < share * volume.reserve:
            raise NoRoom(
                f"the master's volume (ROLECALL_DATA) has {free} bytes free, and {volume.reserve} are reserved "
                "(ROLECALL_RESERVE_BYTES): nothing was stored; delete jobs (rolecall prune) or give it a larger "
                "volume, then try again"
            )

    async def admit(self, size: int, *, share: float = 1.0) -> None:
        """Count `size` bytes that will be written now. Raises `NoRoom` like `check`."""
        await self.check(size, share=share)
        self._admitted += size

    def _ask(self) -> Volume:
        found = os.statvfs(self._folder)
        total = found.f_blocks * found.f_frsize
        reserve = min(int(_SHARE * total), _MAX_RESERVE) if self._reserve is None else self._reserve
        return Volume(free=found.f_bavail * found.f_frsize, total=total, reserve=reserve)


class JobQuota:
    """The limit on the bytes of each job in the blob store; `None` for no limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._arriving: Counter[str] = Counter()

    def check(self, job: str, size: int) -> None:
        """Raise `QuotaExceeded` if `size` bytes and the current uploads exceed the limit."""
        if self.limit is not None and size + self._arriving[job] > self.limit:
            raise QuotaExceeded(
                f"job {job} would have {size + self._arriving[job]} bytes of checkpoints and artifacts; the limit is "
                f"{self.limit} (ROLECALL_MAX_JOB_BYTES). Write smaller or fewer checkpoints, or ask for a higher limit"
            )

    async def within(
        self, chunks: AsyncIterator[bytes], job: str, stored: Callable[[], Awaitable[int]]
    ) -> AsyncIterator[bytes]:
        """The chunks, as long as they and the `stored` bytes fit the limit. `stored` is called again at the end."""
        before, counted = await stored(), 0
        try:
            async for chunk in chunks:
                counted += len(chunk)
                self._arriving[job] += len(chunk)
                self.check(job, before)
                yield chunk
            self.check(job, await stored())
        finally:
            self._arriving[job] -= counted
            if not self._arriving[job]:
                del self._arriving[job]


def bytes_below(folder: Path, counts: Callable[[Path], bool] = lambda _: True) -> int:
    """The total size of the regular files below a folder for which `counts` is true."""
    used = 0
    for where, _, names in os.walk(folder):
        for path in filter(counts, (Path(where, name) for name in names)):
            with suppress(FileNotFoundError):
                found = path.lstat()
                used += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return used


async def within_reserve(chunks: AsyncIterator[bytes], reserve: Reserve, *, share: float = 1.0) -> AsyncIterator[bytes]:
    """The chunks, as long as the volume has space above this share of its reserve."""
    async for chunk in chunks:
        await reserve.admit(len(chunk), share=share)
        yield chunk
