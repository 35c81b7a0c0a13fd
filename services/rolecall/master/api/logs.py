"""The route `/jobs/{job}/logs`: the output of a job's workers, as text or as server-sent events."""

from collections.abc import AsyncIterator
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, Field

from rolecall.master.api.auth import USERS, Caller, Running, needs, sees_job
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.log_choice import Choice, Reader, log_key, prefix_of, workers_of
from rolecall.master.api.log_follower import Position, follow_logs
from rolecall.master.api.parameters import JobId
from rolecall.master.lines import Line, Lines, cut_note
from rolecall.master.log_filter import TextFilter
from rolecall.master.merged_log import Found, MergedLog
from rolecall.master.segments import Chunk
from rolecall.master.store import jobs
from rolecall.master.store.records import JobSummary, WorkerRecord
from rolecall.spec.bounds import MAX_INTEGER, matching
from rolecall.spec.errors import NotFound
from rolecall.spec.role import Role

router = APIRouter(prefix="/jobs/{job}", dependencies=[Depends(needs(*USERS)), Depends(sees_job)], tags=["results"])
_LOGS = {"content": {name: {"schema": {"type": "string"}} for name in ("text/plain", "text/event-stream")}}
_BLOCK = 1 << 16
"""Bytes that are read at once. Each of them can be an empty line, which becomes an event or gets a prefix."""
_LARGE_BLOCK, _MANY_LINES = 1 << 20, 1 << 16
"""The same for an answer with all lines, if the block has no more lines than this: it needs less time per byte."""
_END = "\n"
_MAX_TEXTS = 10
_TEXT = "Only lines that contain this text, in upper or lower case; of several texts, one is enough."
# An unknown role is an error that names those of the job.
_RoleName = Annotated[str, Field(json_schema_extra={"enum": list[Any](Role)})]
_Text = Annotated[str, Field(min_length=1, max_length=200), matching(r"^[^\r\n]+$", "1 to 200 characters in one line")]


@router.get(
    "/logs", summary="Read the logs", response_class=StreamingResponse, responses={200: _LOGS, **documented(400)}
)
async def read_logs(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    master: Running,
    caller: Caller,
    text: Annotated[list[_Text], Query(default_factory=list, max_length=_MAX_TEXTS, description=_TEXT)],
    role: Annotated[_RoleName | None, Query(description="Only workers with this role.")] = None,
    rank: Annotated[int | None, Query(ge=0, le=MAX_INTEGER, description="Only this worker.")] = None,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_INTEGER, description="The newest by default.")] = None,
    since: Annotated[
        AwareDatetime | None, Query(description="Only the lines after each worker's last log record from before it.")
    ] = None,
    tail: Annotated[int | None, Query(ge=0, le=10_000, description="Only this many of the last such lines.")] = None,
    follow: Annotated[bool, Query(description="Stream server-sent events until the job ends.")] = False,
    last_event_id: Annotated[str | None, Header(description="Continue after the event with this id.")] = None,
) -> StreamingResponse:
    """Return the output of the workers, in the order of the log records' times.

    Each line starts with `[role-number]`, where `text` is searched for as well. A carriage return ends a line.

    With `follow`, each line is an event `log`, and the last event is `end` with the job's state. A stream that breaks
    off before `end` can be continued with `Last-Event-ID`.
    """
    choice = Choice(role, rank, tuple(text), since, tail)
    reader = Reader(master.streams, master.log_threads, caller.name)
    async with master.database.read() as connection:
        record = await jobs.summary(connection, job)
    position = Position.parse(last_event_id) if follow else Position()
    # Before the answer begins, because a stream that has begun can only break off.
    members = await workers_of(master, job, position.attempt or attempt or record.attempt)
    # Later attempts of a job with a worker per node can have more of them.
    if not follow or attempt or record.roles or (role is not None and role not in [*Role]):
        _check_choice(record, members, choice)
    if follow:
        events = follow_logs(master, reader, job, choice, attempt, position)
        return StreamingResponse(events, media_type="text/event-stream")
    members = [worker for worker in members if choice.admits(worker)]
    return StreamingResponse(_whole(reader, members, choice), media_type="text/plain; charset=utf-8")


async def _whole(reader: Reader, members: list[WorkerRecord], choice: Choice) -> AsyncIterator[bytes]:
    """The lines that the logs have now: a job that writes faster than they are read must not prolong the answer."""
    ends = await reader.run(lambda: [reader.streams.size(log_key(worker)) for worker in members])
    starts = await reader.threads.result(reader.user, choice.starts(reader.streams, members))
    if len(members) != 1:
        blocks = _merged(reader, members, choice, starts, ends)
    elif (wanted := choice.wanted(members[0])) is None:
        blocks = _unfiltered(reader, members[0], starts[0], ends[0])
    else:
        blocks = _filtered(wanted, reader, members[0], starts[0], ends[0])
    async for block in blocks:
        if block:
            yield block


async def _merged(
    reader: Reader, members: list[WorkerRecord], choice: Choice, starts: list[int], ends: list[int]
) -> AsyncIterator[bytes]:
    prefixes = [prefix_of(worker) for worker in members]

    def text_of(one: Found) -> str:
        prefix = prefixes[one.number]
        return f"{prefix}{one.line.text.replace(_END, _END + prefix)}\n"

    def read(log: MergedLog) -> bytes | None:
        found = log.read()
        return None if found is None else "".join(map(text_of, found)).encode()

    sources = await reader.threads.result(reader.user, choice.sources(reader.streams, members, starts, ends))
    log = MergedLog(reader.streams, sources, blocks=not choice.texts)
    while (block := await reader.run(read, log)) is not None:
        yield block


async def _unfiltered(reader: Reader, worker: WorkerRecord, offset: int, end: int) -> AsyncIterator[bytes]:
    prefix, key = prefix_of(worker).encode(), log_key(worker)
    line_is_open = after_return = False

    def read() -> tuple[bytes, int, bool, bool]:
        """The next block with prefixes, the offset of its end, and whether it ends in a line or a carriage return."""
        chunk = reader.streams.read_log(key, offset, _LARGE_BLOCK)
        if not chunk.data:
            return b"", end, line_is_open, False
        if chunk.data.count(b"\n") + chunk.data.count(b"\r") > _MANY_LINES:
            chunk = Chunk(chunk.start, chunk.data[:_BLOCK])
        note, is_open, data = b"", line_is_open, chunk.data
        if chunk.start > offset:
            note = b"\n" * is_open + prefix + f"{cut_note(chunk.start - offset)}\n".encode()
            is_open = False
        elif after_return:
            data = data.removeprefix(b"\n")
        if b"\r" in data:  # A terminal would overwrite the prefix and the line before it.
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return note, chunk.end, is_open, False
        body, last = data[:-1], data[-1:]
        begin = b"" if is_open else prefix
        block = note + begin + body.replace(b"\n", b"\n" + prefix) + last
        return block, chunk.end, last != b"\n", chunk.data.endswith(b"\r")

    while offset < end:
        block, offset, line_is_open, after_return = await reader.run(read)
        yield block
    if line_is_open:
        yield b"\n"


async def _filtered(
    wanted: TextFilter, reader: Reader, worker: WorkerRecord, start: int, end: int
) -> AsyncIterator[bytes]:
    prefix, lines = prefix_of(worker), Lines(start, wanted)

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


def _check_choice(job: JobSummary, members: list[WorkerRecord], choice: Choice) -> None:
    """Raise `NotFound` if the job has no such workers. Before its first attempt, only its roles are known."""
    wanted = f"no {choice.role or 'worker'}" + ("" if choice.rank is None else f" with rank {choice.rank}")
    if members and not any(choice.admits(worker) for worker in members):
        raise NotFound(f"job {job.id} has {wanted}; attempt {members[0].attempt} has: {_ranks_by_role(members)}")
    roles = job.roles or [*Role]
    if not members and choice.role and choice.role not in roles:
        raise NotFound(f"job {job.id} has {wanted}; {'it has' if job.roles else 'roles'}: {', '.join(roles)}")


def _ranks_by_role(members: list[WorkerRecord]) -> str:
    """Such as `parameter-server (rank 0), trainer (ranks 1 to 4)`; a gang can have thousands of ranks."""
    named: list[str] = []
    for role, group in groupby(members, key=lambda worker: worker.role):
        ranks = [worker.rank for worker in group]
        named.append(f"{role} (rank {ranks[0]})" if len(ranks) == 1 else f"{role} (ranks {ranks[0]} to {ranks[-1]})")
    return ", ".join(named)
