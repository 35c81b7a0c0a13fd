"""Space: what is kept free on the master's volume, and how much of the blob store a job may take."""

import asyncio
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from rolecall.spec.api import Volume
from rolecall.spec.errors import QuotaExceeded, RolecallError

_SHARE, _MAX_RESERVE = 0.05, 2 << 30
_FLOOR = 1 / 4
_KNOWN_S = 1.0
"""How long a look at the volume is good for."""


class NoRoom(RolecallError):
    """The master's volume has no more than its reserve left; the same request succeeds when there is space."""


class Reserve:
    """Keeps some of a volume free, so that the database and the workers' reports always have room.

    The volume is asked once a second at most, in a thread; in between, what was let in since counts.
    """

    def __init__(self, folder: Path, reserve: int | None, now: Callable[[], float]) -> None:
        self._folder = folder
        self._reserve = reserve
        self._now = now
        self._asking = asyncio.Lock()
        self._known: tuple[float, Volume] | None = None
        self._admitted = 0

    async def volume(self) -> Volume:
        """The volume as it was within the last second."""
        async with self._asking:
            if self._known is None or self._now() - self._known[0] > _KNOWN_S:
                counted = self._admitted
                self._known = self._now(), await asyncio.to_thread(self._ask)
                self._admitted -= counted
            return self._known[1]

    async def check(self, wanted: int = 0, *, share: float = 1.0) -> None:
        """Raise `NoRoom` if `wanted` more bytes would leave less than this share of the reserve."""
        volume = await self.volume()
        free = max(0, volume.free - self._admitted)
        if free - wanted < share * volume.reserve:
            raise NoRoom(
                f"the master's volume (ROLECALL_DATA) has {free} bytes free, and {volume.reserve} are reserved "
                "(ROLECALL_RESERVE_BYTES): nothing was stored; delete jobs (rolecall prune) or give it a larger "
                "volume, then try again"
            )

    async def admit(self, size: int, *, share: float = 1.0) -> None:
        """Count `size` bytes that are about to be written. Raises `NoRoom` as `check` does."""
        await self.check(size, share=share)
        self._admitted += size

    def _ask(self) -> Volume:
        found = os.statvfs(self._folder)
        total = found.f_blocks * found.f_frsize
        reserve = min(int(_SHARE * total), _MAX_RESERVE) if self._reserve is None else self._reserve
        return Volume(free=found.f_bavail * found.f_frsize, total=total, reserve=reserve)


class JobQuota:
    """How many bytes each job may have in the blob store; `None` is no limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._arriving: Counter[str] = Counter()

    def check(self, job: str, size: int) -> None:
        """Raise `QuotaExceeded` if `size` bytes, and what arrives right now, are more than the job may have."""
        if self.limit is not None and size + self._arriving[job] > self.limit:
            raise QuotaExceeded(
                f"job {job} would have {size + self._arriving[job]} bytes of checkpoints and artifacts; the limit is "
                f"{self.limit} (ROLECALL_MAX_JOB_BYTES). Write smaller or fewer checkpoints, or ask for a higher limit"
            )

    @contextmanager
    def arriving(self, job: str) -> Generator[Callable[[int], None]]:
        """Counts an upload while it arrives; call what is yielded with the size of each chunk."""
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            counted += size
            self._arriving[job] += size

        try:
            yield count
        finally:
            self._arriving[job] -= counted
            if not self._arriving[job]:
                del self._arriving[job]


def bytes_below(folder: Path, counts: Callable[[Path], bool] = lambda _: True) -> int:
    """Bytes of the regular files below a folder for which `counts`. What is deleted meanwhile counts nothing."""
    used = 0
    for where, _, names in os.walk(folder):
        for path in filter(counts, (Path(where, name) for name in names)):
            with suppress(FileNotFoundError):
                found = path.lstat()
                used += found.st_size if stat.S_ISREG(found.st_mode) else 0
    return used


async def within_reserve(chunks: AsyncIterator[bytes], reserve: Reserve) -> AsyncIterator[bytes]:
    """The chunks, as long as the volume has room for them."""
    async for chunk in chunks:
        await reserve.admit(len(chunk))
        yield chunk


async def above_floor(chunks: AsyncIterator[bytes], reserve: Reserve) -> AsyncIterator[bytes]:
    """The chunks of what may use the reserve, but for a quarter of it, which is the database's alone."""
    async for chunk in chunks:
        await reserve.admit(len(chunk), share=_FLOOR)
        yield chunk


async def within_quota(
    chunks: AsyncIterator[bytes], quota: JobQuota, job: str, stored: Callable[[], Awaitable[int]]
) -> AsyncIterator[bytes]:
    """The chunks, as long as the job may have them beside what is `stored`, which is counted again at the end."""
    if quota.limit is None:
        async for chunk in chunks:
            yield chunk
        return
    before = await stored()
    with quota.arriving(job) as count:
        async for chunk in chunks:
            count(len(chunk))
            quota.check(job, before)
            yield chunk
        quota.check(job, await stored())
