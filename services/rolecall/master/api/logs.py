"""The route `/jobs/{job}/logs`: the output of a job's workers, as text or as server-sent events."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Annotated, NamedTuple, ParamSpec, TypeVar

from fastapi import APIRouter, Depends, Header, HTTPException, Query
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, Field

from rolecall.master.api.auth import USERS, Caller, Running, needs, sees_job
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.keep_alive import EVERY_S, LOOK_AFTER, NOTHING_NEW, keep_alive
from rolecall.master.api.parameters import JobId
from rolecall.master.assembly import Master
from rolecall.master.lines import Line, Lines, cut_note
from rolecall.master.log_filter import TextFilter
from rolecall.master.log_starts import start_of_last, start_since
from rolecall.master.segments import Chunk
from rolecall.master.signals import wait
from rolecall.master.store import jobs, workers
from rolecall.master.store.records import JobSummary, WorkerRecord
from rolecall.master.streams import StreamKey, Streams
from rolecall.master.user_threads import Search, UserThreads
from rolecall.spec.bounds import MAX_INTEGER, matching
from rolecall.spec.errors import NotFound
from rolecall.spec.role import Role

router = APIRouter(prefix="/jobs/{job}", dependencies=[Depends(needs(*USERS)), Depends(sees_job)], tags=["results"])
_P = ParamSpec("_P")
_T = TypeVar("_T")
_LOGS = {"content": {name: {"schema": {"type": "string"}} for name in ("text/plain", "text/event-stream")}}
_PARTIAL_S = 1.0
"""Seconds for which a line without an end is held back from followers."""
_BLOCK = 1 << 16
"""Bytes that are read at once. Each of them can be an empty line, which becomes an event or gets a prefix."""
_LARGE_BLOCK, _MANY_LINES = 1 << 20, 1 << 16
"""The same for an answer with all lines, if the block has no more lines than this: it needs less time per byte."""
_POSITION = re.compile(r"(\d{1,9});((?:\d{1,9}=\d{1,18})?(?:,\d{1,9}=\d{1,18})*)")
_MAX_TEXTS = 10
_TEXT = "Only lines that contain this text, in upper or lower case; of several texts, one is enough."
_Text = Annotated[str, Field(min_length=1, max_length=200), matching(r"^[^\r\n]+$", "1 to 200 characters in one line")]
_MAX_IN_ID = 16
"""In a gang with more workers, only the last line of each block has an id."""


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
        return TextFilter(self.texts, _prefix(worker)) if self.texts else None

    def start(self, streams: Streams, worker: WorkerRecord) -> Search:
        """Find the offset in the worker's log at which the requested lines begin."""
        key, wanted = log_key(worker), self.wanted(worker)
        start = 0 if self.since is None else (yield from start_since(streams, key, self.since))
        if self.tail is None:
            return start
        if wanted is not None:
            return (yield from start_of_last(streams, key, wanted, self.tail, start))
        return max(start, streams.tail_start(key, self.tail))


class Reader(NamedTuple):
    """The logs, and the threads that read them for a user."""

    streams: Streams
    threads: UserThreads
    user: str

    async def run(self, function: Callable[_P, _T], *args: _P.args, **values: _P.kwargs) -> _T:
        """The result of a blocking function, in the user's turn."""
        return await self.threads.run(self.user, function, *args, **values)


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


@router.get(
    "/logs", summary="Read the logs", response_class=StreamingResponse, responses={200: _LOGS, **documented(400)}
)
async def read_logs(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    master: Running,
    caller: Caller,
    text: Annotated[list[_Text], Query(default_factory=list, max_length=_MAX_TEXTS, description=_TEXT)],
    role: Annotated[Role | None, Query(description="Only workers with this role.")] = None,
    rank: Annotated[int | None, Query(ge=0, le=MAX_INTEGER, description="Only this worker.")] = None,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_INTEGER, description="The newest by default.")] = None,
    since: Annotated[
        AwareDatetime | None, Query(description="Only the lines after each worker's last log record from before it.")
    ] = None,
    tail: Annotated[
        int | None, Query(ge=0, le=10_000, description="Only this many of the last such lines of each worker.")
    ] = None,
    follow: Annotated[bool, Query(description="Stream server-sent events until the job ends.")] = False,
    last_event_id: Annotated[str | None, Header(description="Continue after the event with this id.")] = None,
) -> StreamingResponse:
    """Return the output of the workers. Each line starts with `[role-number]`, where `text` is searched for as well.

    With `follow`, each line is an event `log`, and the last event is `end` with the job's state. A stream that breaks
    off before `end` can be continued with `Last-Event-ID`. With `follow` or `text`, a carriage return ends a line.
    """
    choice = Choice(role, rank, tuple(text), since, tail)
    reader = Reader(master.streams, master.log_threads, caller.name)
    async with master.database.read() as connection:
        record = await jobs.summary(connection, job)
    position = Position.parse(last_event_id) if follow else Position()
    # Before the answer begins, because a stream that has begun can only break off.
    members = await _members(master, job, position.attempt or attempt or record.attempt)
    if not follow or attempt or record.roles:  # Later attempts of a job with a worker per node can have more of them.
        _check_choice(record, members, choice)
    if follow:
        events = _follow(master, reader, job, choice, attempt, position)
        return StreamingResponse(events, media_type="text/event-stream")
    members = [worker for worker in members if choice.admits(worker)]
    return StreamingResponse(_whole(reader, members, choice), media_type="text/plain; charset=utf-8")


async def _whole(reader: Reader, members: list[WorkerRecord], choice: Choice) -> AsyncIterator[bytes]:
    """The lines that the logs have now: a job that writes faster than they are read must not prolong the answer."""
    for worker in members:
        end = await reader.run(reader.streams.size, log_key(worker))
        start = await reader.threads.result(reader.user, choice.start(reader.streams, worker))
        wanted = choice.wanted(worker)
        blocks = _unfiltered if wanted is None else partial(_filtered, wanted)
        async for block in blocks(reader, worker, start, end):
            if block:
                yield block


async def _unfiltered(reader: Reader, worker: WorkerRecord, offset: int, end: int) -> AsyncIterator[bytes]:
    prefix, key, line_is_open = _prefix(worker).encode(), log_key(worker), False

    def read() -> tuple[bytes, int, bool]:
        """The next block with prefixes, the offset of its end, and whether it ends within a line."""
        chunk = reader.streams.read_log(key, offset, _LARGE_BLOCK)
        if not chunk.data:
            return b"", end, line_is_open
        if chunk.data.count(b"\n") > _MANY_LINES:
            chunk = Chunk(chunk.start, chunk.data[:_BLOCK])
        note, is_open = b"", line_is_open
        if chunk.start > offset:
            note = b"\n" * is_open + prefix + f"{cut_note(chunk.start - offset)}\n".encode()
            is_open = False
        body, last = chunk.data[:-1], chunk.data[-1:]
        begin = b"" if is_open else prefix
        return note + begin + body.replace(b"\n", b"\n" + prefix) + last, chunk.end, last != b"\n"

    while offset < end:
        block, offset, line_is_open = await reader.run(read)
        yield block
    if line_is_open:
        yield b"\n"


async def _filtered(
    wanted: TextFilter, reader: Reader, worker: WorkerRecord, start: int, end: int
) -> AsyncIterator[bytes]:
    prefix, lines = _prefix(worker), Lines(start, wanted)

    def read() -> bytes | None:
        """The wanted lines of the next block that has some, unless that is far away; None at the log's end."""
        for _ in range(_LARGE_BLOCK // _BLOCK):
            chunk = reader.streams.read_log(log_key(worker), lines.next, _BLOCK)
            if not chunk.data:
                return None
            if (found := joined(lines.feed(chunk))) or lines.next >= end:
                return found
        return b""

    def joined(found: list[Line]) -> bytes:
        return "".join(f"{prefix}{line.text}\n" for line in found).encode()

    while lines.next < end and (block := await reader.run(read)) is not None:
        yield block
    yield joined(lines.flush())


async def _follow(  # noqa: PLR0917 - what a client requests
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
            await follower.turn_to(job, number)
            async for comment in follower.find_starts():
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
        self._lines: dict[int, Lines] = {}
        self._fed_at: dict[int, float] = {}

    @property
    def holds_back(self) -> bool:
        """True if a line without an end is held back for a time. If a text is wanted, it is held back until its end."""
        return not self._choice.texts and any(lines.has_rest for lines in self._lines.values())

    async def turn_to(self, job: str, attempt: int) -> None:
        """Switch to the logs of `attempt`. The workers of an attempt never change."""
        if self._members and self._members[0].attempt == attempt:
            return
        if self._position.attempt != attempt:
            self._position = Position(attempt)
        members = await _members(self._master, job, attempt)
        self._members = [worker for worker in members if self._choice.admits(worker)]
        # A client's position can have other ranks, and each event repeats it.
        given = self._position.offsets
        self._position = Position(attempt, {one.rank: given[one.rank] for one in self._members if one.rank in given})
        self._lines = {one.rank: self._lines_of(one, given.get(one.rank, 0)) for one in self._members}

    async def find_starts(self) -> AsyncIterator[bytes]:
        """Skip the lines of the first attempt that a new client does not want. Yields comments if that takes long."""
        if not self._is_new:
            return
        self._is_new = False
        if self._choice.tail is None and self._choice.since is None:
            return
        commented_at = self._loop.time()
        for worker in self._members:
            search = self._choice.start(self._reader.streams, worker)
            while (start := await self._reader.threads.step(self._reader.user, search)) is None:
                if self._loop.time() - commented_at > EVERY_S:
                    commented_at = self._loop.time()
                    yield NOTHING_NEW
            self._position.offsets[worker.rank] = start
            self._lines[worker.rank] = self._lines_of(worker, start)

    async def has_all(self) -> bool:
        """Return whether all output of the workers has arrived."""
        for worker in self._members:
            if not await self._reader.streams.is_complete(log_key(worker)):
                return False
        return True

    async def news(self, *, over: bool) -> AsyncIterator[bytes]:
        """The events of new lines, in blocks. When the attempt is over, lines without an end are included."""
        sent_at = self._loop.time()
        for worker in self._members:
            lines = self._lines[worker.rank]
            # A thread splits the lines: a job decides how many there are, and the event loop must not wait for them.
            while (events := await self._reader.run(self._read, worker, lines)) is not None:
                now = self._fed_at[worker.rank] = self._loop.time()
                if events or now - sent_at > EVERY_S:
                    yield events or NOTHING_NEW
                    sent_at = now
            waited_s = self._loop.time() - self._fed_at.get(worker.rank, 0.0)
            if lines.has_rest and (over or (self.holds_back and waited_s >= _PARTIAL_S)):
                yield self._events(worker, lines.flush())

    def _lines_of(self, worker: WorkerRecord, start: int) -> Lines:
        return Lines(start, self._choice.wanted(worker))

    def _read(self, worker: WorkerRecord, lines: Lines) -> bytes | None:
        """The events of the next block of a worker's log, or None at the log's end."""
        chunk = self._reader.streams.read_log(log_key(worker), lines.next, _BLOCK)
        return self._events(worker, lines.feed(chunk)) if chunk.data else None

    def _events(self, worker: WorkerRecord, lines: list[Line]) -> bytes:
        texts: list[str] = []
        for line in lines:
            self._position.offsets[worker.rank] = line.end
            if len(self._members) <= _MAX_IN_ID or line is lines[-1]:
                texts.append(f"id: {self._position}\n")
            texts.append(f"event: log\ndata: {_prefix(worker)}{line.text}\n\n")
        return "".join(texts).encode()


async def _members(master: Master, job: str, attempt: int) -> list[WorkerRecord]:
    async with master.database.read() as connection:
        return await workers.of_attempt(connection, job, attempt)


def _check_choice(job: JobSummary, members: list[WorkerRecord], choice: Choice) -> None:
    """Raise `NotFound` if the job has no such workers. Before its first attempt, only its roles are known."""
    wanted = f"no {choice.role or 'worker'}" + ("" if choice.rank is None else f" with rank {choice.rank}")
    if members and not any(choice.admits(worker) for worker in members):
        raise NotFound(f"job {job.id} has {wanted}; attempt {members[0].attempt} has: {_ranks_by_role(members)}")
    if not members and choice.role and job.roles and choice.role not in job.roles:
        raise NotFound(f"job {job.id} has {wanted}; it has: {', '.join(job.roles)}")


def _ranks_by_role(members: list[WorkerRecord]) -> str:
    """Such as `parameter-server (rank 0), trainer (ranks 1 to 4)`; a gang can have thousands of ranks."""
    named: list[str] = []
    for role, group in groupby(members, key=lambda worker: worker.role):
        ranks = [worker.rank for worker in group]
        named.append(f"{role} (rank {ranks[0]})" if len(ranks) == 1 else f"{role} (ranks {ranks[0]} to {ranks[-1]})")
    return ", ".join(named)


def _prefix(worker: WorkerRecord) -> str:
    """The beginning of every line of the worker's log in answers."""
    return f"[{worker.name}] "


def log_key(worker: WorkerRecord) -> StreamKey:
    """The stream of a worker's log."""
    return StreamKey(worker.job, worker.attempt, worker.rank, "log")
