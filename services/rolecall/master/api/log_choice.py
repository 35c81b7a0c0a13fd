"""The lines of logs that a user requests, and where they begin."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from rolecall.master.lines import Lines
from rolecall.master.log_filter import TextFilter
from rolecall.master.log_starts import record_before, start_of_last, start_since, starts_of_last
from rolecall.master.merged_log import Source
from rolecall.master.program import Master
from rolecall.master.store import workers
from rolecall.master.store.records import WorkerRecord
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import Search, UserThreads

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Choice(NamedTuple):
    """The workers and lines that a user requests; None and no text mean all."""

    role: str | None = None
    rank: int | None = None
    texts: tuple[str, ...] = ()
    since: datetime | None = None
    tail: int | None = None

    def admits(self, worker: WorkerRecord) -> bool:
        """Return whether `worker` is one of them."""
        return self.role in {None, worker.role} and self.rank in {None, worker.rank}

    def wanted(self, worker: WorkerRecord) -> TextFilter | None:
        """The filter of the worker's lines; None if it admits all."""
        return TextFilter(self.texts, prefix_of(worker)) if self.texts else None

    def starts(self, streams: Streams, members: Sequence[WorkerRecord]) -> Search[list[int]]:
        """Find the offset in each worker's log at which the requested lines begin."""
        found: list[int] = []
        for worker in members:
            key = log_key(worker)
            found.append(0 if self.since is None else (yield from start_since(streams, key, self.since)))
            yield
        if self.tail is None or not members:
            return found
        if len(members) == 1:
            return [(yield from self._tail_start(streams, members[0], found[0], self.tail))]
        open_tails = [
            partial(self._open_tail, streams, worker, start) for worker, start in zip(members, found, strict=True)
        ]
        return (yield from starts_of_last(streams, open_tails, self.tail))

    def sources(
        self, streams: Streams, members: Sequence[WorkerRecord], starts: Sequence[int], ends: Sequence[int | None]
    ) -> Search[list[Source]]:
        """Open each worker's log between its start and its end."""
        found: list[Source] = []
        for worker, start, end in zip(members, starts, ends, strict=True):
            found.append(self._open(streams, worker, start, end))
            yield
        return found

    def _open(self, streams: Streams, worker: WorkerRecord, start: int, end: int | None) -> Source:
        key, lines = log_key(worker), Lines(start, self.wanted(worker))
        return Source(key, lines, streams.log_arrivals(key), end, record_before(streams, key, start))

    def _open_tail(self, streams: Streams, worker: WorkerRecord, start: int, tail: int) -> Search[Source]:
        end = streams.size(log_key(worker))
        return self._open(streams, worker, (yield from self._tail_start(streams, worker, start, tail)), end)

    def _tail_start(self, streams: Streams, worker: WorkerRecord, start: int, tail: int) -> Search[int]:
        key, wanted = log_key(worker), self.wanted(worker)
        if wanted is not None:
            return (yield from start_of_last(streams, key, wanted, tail, start))
        return max(start, streams.tail_start(key, tail))


class Reader(NamedTuple):
    """The logs, and the threads that read them for a user."""

    streams: Streams
    threads: UserThreads
    user: str

    async def run(self, function: Callable[_P, _T], *args: _P.args, **values: _P.kwargs) -> _T:
        """The result of a blocking function, in the user's turn."""
        return await self.threads.run(self.user, function, *args, **values)


async def workers_of(master: Master, job: str, attempt: int) -> list[WorkerRecord]:
    async with master.database.read() as connection:
        return await workers.of_attempt(connection, job, attempt)


def prefix_of(worker: WorkerRecord) -> str:
    """The beginning of every line of the worker's log in answers."""
    return f"[{worker.name}] "


def log_key(worker: WorkerRecord) -> StreamKey:
    """The stream of a worker's log."""
    return StreamKey(worker.job, worker.attempt, worker.rank, "log")
