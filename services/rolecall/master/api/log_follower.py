"""The lines of a job's logs as server-sent events, as they arrive."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from fastapi import HTTPException

from rolecall.master.api.keep_alive import EVERY_S, LOOK_AFTER, NOTHING_NEW, keep_alive
from rolecall.master.api.log_choice import Choice, Reader, log_key, prefix_of, workers_of
from rolecall.master.lines import Line
from rolecall.master.merged_log import MergedLog
from rolecall.master.program import Master
from rolecall.master.signals import wait
from rolecall.master.store import jobs
from rolecall.master.store.records import WorkerRecord
from rolecall.spec.errors import NotFound

_PARTIAL_S = 1.0
"""Seconds for which a line without an end is held back."""
_RESUME_S = 1.0
"""Seconds after which all logs are read again while one has more than the client takes."""
_POSITION = re.compile(r"(\d{1,9});((?:\d{1,9}=\d{1,18})?(?:,\d{1,9}=\d{1,18})*)")
_MAX_IN_ID = 16
"""In a gang with more workers, only the last line of each block has an id."""


@dataclass(slots=True)
class Position:
    """A follower's position: the attempt, and the offset in each rank's log. It is the id of an event."""

    attempt: int | None = None
    offsets: dict[int, int] = field(default_factory=dict[int, int])

    @classmethod
    def parse(cls, text: str | None) -> "Position":
        """The position from an event's id; 400 for an invalid id."""
        if not text:
            return cls()
        if (found := _POSITION.fullmatch(text)) is None:
            raise HTTPException(400, f"Last-Event-ID {text[:80]!r} is not the id of an event of this stream")
        pairs = (pair.split("=") for pair in found[2].split(",") if pair)
        return cls(int(found[1]), {int(rank): int(offset) for rank, offset in pairs})

    def __str__(self) -> str:
        return f"{self.attempt};{','.join(f'{rank}={offset}' for rank, offset in self.offsets.items())}"


async def follow_logs(  # noqa: PLR0917 - what a client requests
    master: Master, reader: Reader, job: str, choice: Choice, attempt: int | None, position: Position
) -> AsyncIterator[bytes]:
    """The lines of a job as they arrive, of one attempt or of all attempts that begin meanwhile."""
    number, follower = position.attempt or attempt, _Follower(master, reader, choice, position)
    while not master.news.closed:
        ticket = master.news.ticket(job)
        async with master.database.read() as connection:
            try:
                record = await jobs.summary(connection, job)
            except NotFound:
                return  # The job has been deleted.
        number = number or record.attempt or None
        over = ends = record.state.ended or (number is not None and number < record.attempt)
        if number is not None:
            async for comment in follower.turn_to(job, number):
                yield comment
            over = over and await follower.has_all()
            async for events in follower.news(over=over):
                yield events
        if over and (number is None or attempt is not None or number >= record.attempt):
            yield f"event: end\ndata: {record.state}\n\n".encode()
            return
        if over and number is not None:
            number += 1
            continue
        if follower.holds_back:
            await wait(ticket, _PARTIAL_S)
            continue
        # The wait for the rest of the log of an ended worker has a limit, which no notification announces.
        async for comment in keep_alive(ticket, 1 if ends else LOOK_AFTER):
            yield comment


class _Follower:
    """The progress of one client in the logs of one attempt."""

    def __init__(self, master: Master, reader: Reader, choice: Choice, position: Position) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._master = master
        self._choice = choice
        self._position = position
        self._is_new = position.attempt is None
        self._members: list[WorkerRecord] = []
        self._log = MergedLog(reader.streams, [])

    @property
    def holds_back(self) -> bool:
        """True if a line without an end is held back for a time. If a text is wanted, it is held back until its end."""
        return not self._choice.texts and any(source.lines.has_rest for source in self._log.sources)

    async def turn_to(self, job: str, attempt: int) -> AsyncIterator[bytes]:
        """Switch to the logs of `attempt`. The workers of an attempt never change.

        A new client can skip lines of its first attempt. Yields comments if their search takes long.
        """
        if self._members and self._members[0].attempt == attempt:
            return
        members = [one for one in await workers_of(self._master, job, attempt) if self._choice.admits(one)]
        # A client's position can have other ranks, and each event repeats it.
        given = self._position.offsets if self._position.attempt == attempt else {}
        offsets = {one.rank: given[one.rank] for one in members if one.rank in given}
        if self._is_new and members and (self._choice.tail is not None or self._choice.since is not None):
            search, commented_at = self._choice.starts(self._reader.streams, members), self._loop.time()
            while (starts := await self._reader.threads.step(self._reader.user, search)) is None:
                if self._loop.time() - commented_at > EVERY_S:
                    commented_at = self._loop.time()
                    yield NOTHING_NEW
            offsets = {one.rank: start for one, start in zip(members, starts, strict=True)}
        self._is_new = False
        self._members, self._position = members, Position(attempt, offsets)
        streams, starts = self._reader.streams, [offsets.get(one.rank, 0) for one in members]
        opening = self._choice.sources(streams, members, starts, [None] * len(members))
        self._log = MergedLog(streams, await self._reader.threads.result(self._reader.user, opening), self._loop.time)

    async def has_all(self) -> bool:
        """Return whether all output of the workers has arrived."""
        for worker in self._members:
            if not await self._reader.streams.is_complete(log_key(worker)):
                return False
        return True

    async def news(self, *, over: bool) -> AsyncIterator[bytes]:
        """The events of new lines, in blocks. When the attempt is over, lines without an end are included."""
        sent_at = resumed_at = self._loop.time()
        await self._reader.run(self._log.resume)
        # A thread splits the lines: a job decides how many there are, and the event loop must not wait for them.
        while (events := await self._reader.run(self._read)) is not None:
            now = self._loop.time()
            if events or now - sent_at > EVERY_S:
                yield events or NOTHING_NEW
                sent_at = now
            if now - resumed_at > _RESUME_S:
                resumed_at = now
                await self._reader.run(self._log.resume)
        for worker, source in zip(self._members, self._log.sources, strict=True):
            waited_s = self._loop.time() - source.fed_at
            if source.lines.has_rest and (over or (self.holds_back and waited_s >= _PARTIAL_S)):
                yield self._events([(worker, line) for line in source.lines.flush()])

    def _read(self) -> bytes | None:
        """The events of the next lines, or None at the end of the logs."""
        found = self._log.read()
        return None if found is None else self._events([(self._members[one.number], one.line) for one in found])

    def _events(self, found: Sequence[tuple[WorkerRecord, Line]]) -> bytes:
        texts: list[str] = []
        for index, (worker, line) in enumerate(found, 1):
            self._position.offsets[worker.rank] = line.end
            if len(self._members) <= _MAX_IN_ID or index == len(found):
                texts.append(f"id: {self._position}\n")
            texts.append(f"event: log\ndata: {prefix_of(worker)}{line.text}\n\n")
        return "".join(texts).encode()
