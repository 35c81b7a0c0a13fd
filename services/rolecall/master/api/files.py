"""The routes below `/jobs/{job}/` for its results: step series, events, and lists of checkpoints and artifacts."""

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response, StreamingResponse

from rolecall.master.api.auth import USERS, Caller, Running, needs, sees_job
from rolecall.master.api.keep_alive import keep_alive
from rolecall.master.api.parameters import JobId
from rolecall.master.field_errors import field_error
from rolecall.master.program import Master
from rolecall.master.store import artifacts, checkpoints, events, jobs, workers
from rolecall.master.store.records import WorkerRecord
from rolecall.master.streams import StreamKey
from rolecall.spec.api import Artifact, ArtifactList, Checkpoint, CheckpointList, Event, EventList, Series, SeriesList
from rolecall.spec.bounds import MAX_INTEGER
from rolecall.spec.errors import InvalidRequest, NotFound

router = APIRouter(prefix="/jobs/{job}", dependencies=[Depends(needs(*USERS)), Depends(sees_job)], tags=["results"])
_MOST_POINTS, _LEAST_POINTS = 1_000_000, 100
"""Of all series in an answer, and of each one."""
_MOST_BYTES = 16 << 20
"""Of the lines that an answer shows. A few lines of each series stay, so the answer itself may have twice as many."""
_EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


@router.get("/events", summary="List or follow the events", response_model=EventList, responses={200: _EVENTS})
async def list_events(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    master: Running,
    caller: Caller,
    after: Annotated[int, Query(ge=0, le=MAX_INTEGER, description="Only events with ids above this.")] = 0,
    follow: Annotated[bool, Query(description="Stream server-sent events until the job ends.")] = False,
    last_event_id: Annotated[
        str | None, Header(pattern="^[0-9]{1,9}$", description="Continue after the event with this id.")
    ] = None,
) -> Response:
    """Return the events with ids above `after`, oldest first.

    With `follow`, the response is a stream. It sends each event with its id as soon as it happens, and ends with the
    event `end`, which has the job's state. To continue a stream that breaks off earlier, send `Last-Event-ID`.
    """
    async with master.database.read() as connection:
        await jobs.summary(connection, job)
        found = [] if follow else await events.of_job(connection, job, after)
    if follow:
        stream = _follow(master, job, int(last_event_id or after))
        return StreamingResponse(stream, media_type="text/event-stream")

    def render() -> bytes:
        return EventList(events=[_shown(Event, event) for event in found]).model_dump_json().encode()

    # In a thread, because the redaction of a thousand long messages can take seconds.
    body = await master.chart_threads.run(caller.name, render)
    return Response(body, media_type="application/json")


@router.get("/metrics", summary="Show the step series", response_model=SeriesList)
async def list_metrics(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    master: Running,
    caller: Caller,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_INTEGER, description="All by default.")] = None,
    points: Annotated[
        int,
        Query(
            ge=1, le=100_000, description="Thin each series to about this many points, or fewer if the answer is large."
        ),
    ] = 2000,
    lowest_rank: Annotated[
        bool, Query(description="Only workers that reported a value which no lower rank of their attempt reported.")
    ] = False,
) -> Response:
    """Return the values that each worker reported, by step."""
    async with master.database.read() as connection:
        record = await jobs.get(connection, job)
        numbers = range(1, record.attempt + 1) if attempt is None else [attempt]
        members = [worker for number in numbers for worker in await workers.of_attempt(connection, job, number)]
    streams = {StreamKey(job, worker.attempt, worker.rank, "progress"): worker for worker in members}
    if lowest_rank:
        keys = await master.series.lowest_ranks(caller.name, streams)
    else:
        keys = await master.chart_threads.run(caller.name, lambda: list(filter(master.streams.size, streams)))
    points = min(points, max(_LEAST_POINTS, _MOST_POINTS // max(1, len(keys))))
    max_bytes = _MOST_BYTES // max(1, len(keys))
    found, size = list[bytes](), 0
    for key in keys:
        # Rendered one by one, because the values of a series take ten times as much memory as their text.
        if shown := await master.series.of_stream(caller.name, key, points, max_bytes):
            found.append(await master.chart_threads.run(caller.name, _rendered, streams[key], shown))
            size += len(found[-1])
        if size > 2 * _MOST_BYTES:
            given = "all" if attempt is None else attempt
            remedy = "" if attempt else f"; `rolecall metrics {job} --attempt N` shows those of one attempt"
            legal = "one attempt of fewer or smaller series; lowest_rank=true leaves out repeated ones"
            raise InvalidRequest(
                [field_error("attempt", f"the series have more than {size} bytes{remedy}", given, legal)]
            )
    listed = [part for one in found for part in (b",", one)][1:]
    return Response(b"".join([b'{"series":[', *listed, b"]}"]), media_type="application/json")


@router.get("/checkpoints", summary="List the recorded checkpoints")
async def list_checkpoints(job: JobId, master: Running) -> CheckpointList:
    """Return the checkpoints, newest first. The next attempt resumes from the first one."""
    async with master.database.read() as connection:
        await jobs.get(connection, job)
        found = await checkpoints.of_job(connection, job)
    return CheckpointList(checkpoints=[_shown(Checkpoint, checkpoint) for checkpoint in found])


@router.get("/artifacts", summary="List the artifacts")
async def list_artifacts(job: JobId, master: Running) -> ArtifactList:
    """Return the artifacts, sorted by name."""
    async with master.database.read() as connection:
        await jobs.get(connection, job)
        found = await artifacts.of_job(connection, job)
    return ArtifactList(artifacts=[_shown(Artifact, artifact) for artifact in found])


async def _follow(master: Master, job: str, after: int) -> AsyncIterator[bytes]:
    while not master.news.closed:
        ticket = master.news.ticket(job)
        async with master.database.read() as connection:
            try:
                # Before the events: when the job has ended, no events of its end can follow.
                record = await jobs.summary(connection, job)
            except NotFound:
                return  # The job has been deleted.
            found = await events.of_job(connection, job, after)
        for event in found:
            after = event.id
            yield f"id: {event.id}\ndata: {_shown(Event, event).model_dump_json()}\n\n".encode()
        if record.state.ended:
            yield f"event: end\ndata: {record.state}\n\n".encode()
            return
        async for comment in keep_alive(ticket):
            yield comment


def _rendered(worker: WorkerRecord, points: list[dict[str, Any]]) -> bytes:
    series = Series(
        attempt=worker.attempt, rank=worker.rank, role=worker.role, role_rank=worker.role_rank, points=points
    )
    return series.model_dump_json().encode()


def _shown(kind: Callable[..., Any], record: Any) -> Any:
    """The record as a document of this kind, which has a part of its fields."""
    names = kind.model_fields  # pyright: ignore[reportFunctionMemberAccess]
    return kind(**{name: getattr(record, name) for name in names})
