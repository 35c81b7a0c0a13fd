"""The route `/jobs/{job}/logs`: the output of a job's workers, as text or as server-sent events."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Header, HTTPException, Query
from fastapi.responses import StreamingResponse

from rolecall.master.api.auth import USERS, Running, needs, sees_job
from rolecall.master.api.keep_alive import LOOK_AFTER, keep_alive
from rolecall.master.lines import Line, Lines, cut_note
from rolecall.master.program import Master
from rolecall.master.signals import wait
from rolecall.master.store import jobs, workers
from rolecall.master.store.records import WorkerRecord
from rolecall.master.streams import StreamKey
from rolecall.spec.bounds import MAX_INTEGER
from rolecall.spec.errors import NotFound
from rolecall.spec.role import Role

router = APIRouter(prefix="/jobs/{job}", dependencies=[Depends(needs(*USERS)), Depends(sees_job)], tags=["results"])
_LOGS = {"content": {name: {"schema": {"type": "string"}} for name in ("text/plain", "text/event-stream")}}
_PARTIAL_S = 1.0
"""Seconds for which a line without an end is held back from followers."""
_BLOCK = 1 << 20
_FOLLOWED_BLOCK = 1 << 16
"""Smaller, because each of its bytes can be an empty line, and each line becomes an event."""
_POSITION = re.compile(r"(\d{1,9});((?:\d{1,9}=\d{1,18})?(?:,\d{1,9}=\d{1,18})*)")
_MAX_IN_ID = 16
"""In a gang with more workers, only the last line of each block has an id."""


class Choice(NamedTuple):
    """The workers whose logs a user requests; None means all."""

    role: Role | None
    rank: int | None

    def admits(self, worker: WorkerRecord) -> bool:
        """Return whether `worker` is one of them."""
        return self.role in {None, worker.role} and self.rank in {None, worker.rank}


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


@router.get("/logs", summary="Read the logs", response_class=StreamingResponse, responses={200: _LOGS})
async def read_logs(  # noqa: PLR0917 - the framework passes by name
    job: str,
    master: Running,
    role: Role | None = None,
    rank: Annotated[int | None, Query(ge=0, le=MAX_INTEGER)] = None,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_INTEGER, description="The newest by default.")] = None,
    tail: Annotated[
        int | None, Query(ge=0, le=10_000, description="Only this many of the last lines of each worker.")
    ] = None,
    follow: Annotated[bool, Query(description="Stream server-sent events until the job ends.")] = False,
    last_event_id: Annotated[str | None, Header(description="Continue after the event with this id.")] = None,
) -> StreamingResponse:
    """Return the output of the workers. Each line starts with `[role-number]`.

    With `follow`, each line is an event `log`, and the last event is `end` with the job's state. A carriage return ends
    a line as well. A stream that breaks off before `end` can be continued with `Last-Event-ID`.
    """
    choice = Choice(role, rank)
    async with master.database.read() as connection:
        record = await jobs.summary(connection, job)
    if follow:
        position = Position.parse(last_event_id)
        if number := position.attempt or attempt:
            await _members(master, job, number, choice)  # 404 instead of a broken stream if it doesn't exist
        if tail is not None and position.attempt is None and (number := attempt or record.attempt):
            members = await _members(master, job, number, choice)
            position = Position(number, await _starts(master, members, tail))
        events = _follow(master, job, choice, attempt, position)
        return StreamingResponse(events, media_type="text/event-stream")
    members = await _members(master, job, attempt or record.attempt, choice)
    starts = {} if tail is None else await _starts(master, members, tail)
    return StreamingResponse(_whole(master, members, starts), media_type="text/plain; charset=utf-8")


async def _starts(master: Master, members: list[WorkerRecord], tail: int) -> dict[int, int]:
    """The offset at which the last `tail` lines of each worker's log begin, by rank."""
    # One call for each, so that nodes don't wait for a thread until all logs of a large gang are read.
    return {one.rank: await asyncio.to_thread(master.streams.tail_start, log_key(one), tail) for one in members}


async def _whole(master: Master, members: list[WorkerRecord], starts: dict[int, int]) -> AsyncIterator[bytes]:
    for worker in members:
        prefix, key = f"[{worker.name}] ".encode(), log_key(worker)
        offset, line_is_open = starts.get(worker.rank, 0), False
        while (chunk := await asyncio.to_thread(master.streams.read_log, key, offset, _BLOCK)).data:
            if chunk.start > offset:
                note = f"{cut_note(chunk.start - offset)}\n".encode()
                yield b"\n" * line_is_open + prefix + note
                line_is_open = False
            body, last = chunk.data[:-1], chunk.data[-1:]
            yield (b"" if line_is_open else prefix) + body.replace(b"\n", b"\n" + prefix) + last
            offset, line_is_open = chunk.end, last != b"\n"
        if line_is_open:
            yield b"\n"


async def _follow(
    master: Master, job: str, choice: Choice, attempt: int | None, position: Position
) -> AsyncIterator[bytes]:
    """The lines of a job as they arrive, of one attempt or of all attempts that begin meanwhile."""
    number, follower = position.attempt or attempt, _Follower(master, position)
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
            await follower.turn_to(job, number, choice)
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

    def __init__(self, master: Master, position: Position) -> None:
        self._loop = asyncio.get_running_loop()
        self._streams = master.streams
        self._master = master
        self._position = position
        self._members: list[WorkerRecord] = []
        self._lines: dict[int, Lines] = {}
        self._fed_at: dict[int, float] = {}

    @property
    def holds_back(self) -> bool:
        """True if a line without an end is held back."""
        return any(lines.has_rest for lines in self._lines.values())

    async def turn_to(self, job: str, attempt: int, choice: Choice) -> None:
        """Switch to the logs of `attempt`. The workers of an attempt never change."""
        if self._members and self._members[0].attempt == attempt:
            return
        if self._position.attempt != attempt:
            self._position = Position(attempt)
        self._members = await _members(self._master, job, attempt, choice)
        # A client's position can have other ranks, and each event repeats it.
        given = self._position.offsets
        self._position = Position(attempt, {one.rank: given[one.rank] for one in self._members if one.rank in given})
        self._lines = {one.rank: Lines(given.get(one.rank, 0)) for one in self._members}

    async def has_all(self) -> bool:
        """Return whether all output of the workers has arrived."""
        for worker in self._members:
            if not await self._streams.is_complete(log_key(worker)):
                return False
        return True

    async def news(self, *, over: bool) -> AsyncIterator[bytes]:
        """The events of new lines, in blocks. When the attempt is over, lines without an end are included."""
        for worker in self._members:
            lines = self._lines[worker.rank]
            # A thread splits the lines: a job decides how many there are, and the event loop must not wait for them.
            while (events := await asyncio.to_thread(self._read, worker, lines)) is not None:
                self._fed_at[worker.rank] = self._loop.time()
                yield events
            waited_s = self._loop.time() - self._fed_at.get(worker.rank, 0.0)
            if lines.has_rest and (over or waited_s >= _PARTIAL_S):
                yield self._events(worker, lines.flush())

    def _read(self, worker: WorkerRecord, lines: Lines) -> bytes | None:
        """The events of the next block of a worker's log, or None at the log's end."""
        chunk = self._streams.read_log(log_key(worker), lines.next, _FOLLOWED_BLOCK)
        return self._events(worker, lines.feed(chunk)) if chunk.data else None

    def _events(self, worker: WorkerRecord, lines: list[Line]) -> bytes:
        texts: list[str] = []
        for line in lines:
            self._position.offsets[worker.rank] = line.end
            if len(self._members) <= _MAX_IN_ID or line is lines[-1]:
                texts.append(f"id: {self._position}\n")
            texts.append(f"event: log\ndata: [{worker.name}] {line.text}\n\n")
        return "".join(texts).encode()


async def _members(master: Master, job: str, attempt: int, choice: Choice) -> list[WorkerRecord]:
    async with master.database.read() as connection:
        members = await workers.of_attempt(connection, job, attempt)
    return [worker for worker in members if choice.admits(worker)]


def log_key(worker: WorkerRecord) -> StreamKey:
    """The stream of a worker's log."""
    return StreamKey(worker.job, worker.attempt, worker.rank, "log")
