"""The lines of logs that a user requests, and where they begin."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from rolecall.master.assembly import Master
from rolecall.master.lines import Lines
from rolecall.master.log_filter import TextFilter
from rolecall.master.log_starts import record_before, start_of_last, start_since, starts_of_last
from rolecall.master.merged_log import Source
from rolecall.master.store import workers
from rolecall.master.store.records import WorkerRecord
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import Search, UserThreads
from rolecall.spec.role import Role

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Choice(NamedTuple):
    """The workers and lines that a user requests; None and no text mean all."""

    role: Role | None = None
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
        if self.tail is None or len(members) < 2:
            found: list[int] = []
            for worker in members:
                found.append((yield from self._start(streams, worker, self.tail)))
            return found
        open_tails = [partial(self._open_tail, streams, worker) for worker in members]
        return (yield from starts_of_last(streams, open_tails, self.tail))

    def source(self, streams: Streams, worker: WorkerRecord, start: int, end: int | None = None) -> Source:
        """A worker's log from `start`. Blocks."""
        key, lines = log_key(worker), Lines(start, self.wanted(worker))
        return Source(key, lines, streams.log_arrivals(key), end, record_before(streams, key, start))

    def _open_tail(self, streams: Streams, worker: WorkerRecord, tail: int) -> Search[Source]:
        end = streams.size(log_key(worker))
        return self.source(streams, worker, (yield from self._start(streams, worker, tail)), end)

    def _start(self, streams: Streams, worker: WorkerRecord, tail: int | None) -> Search[int]:
        key, wanted = log_key(worker), self.wanted(worker)
        start = 0 if self.since is None else (yield from start_since(streams, key, self.since))
        if tail is None:
            return start
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
