"""The routes below `/jobs/{job}/` for its results: step series, events, checkpoints, artifacts."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from rolecall.master.api.auth import USERS, Running, needs, sees_job
from rolecall.master.program import Master
from rolecall.master.store import artifacts, checkpoints, events, jobs, workers
from rolecall.master.store.records import WorkerRecord
from rolecall.master.streams import StreamKey
from rolecall.spec.api import Artifact, ArtifactList, Checkpoint, CheckpointList, Event, EventList, Series, SeriesList
from rolecall.spec.bounds import MAX_INTEGER

router = APIRouter(prefix="/jobs/{job}", dependencies=[Depends(needs(*USERS)), Depends(sees_job)], tags=["results"])


@router.get("/events", summary="List the events")
async def list_events(job: str, master: Running, after: Annotated[int, Query(ge=0, le=MAX_INTEGER)] = 0) -> EventList:
    """Return the events with ids above `after`, oldest first."""
    async with master.database.read() as connection:
        await jobs.get(connection, job)
        found = await events.of_job(connection, job, after)
    return EventList(events=[_shown(Event, event) for event in found])


@router.get("/metrics", summary="Show the step series")
async def metrics(
    job: str,
    master: Running,
    attempt: Annotated[int | None, Query(ge=1, le=MAX_INTEGER, description="All by default.")] = None,
    points: Annotated[int, Query(ge=1, le=100_000, description="Thin each series to about this many points.")] = 2000,
) -> SeriesList:
    """Return the values that each worker reported, by step."""
    async with master.database.read() as connection:
        record = await jobs.get(connection, job)
        numbers = range(1, record.attempt + 1) if attempt is None else [attempt]
        members = [worker for number in numbers for worker in await workers.of_attempt(connection, job, number)]
    found = [await _series(master, worker, points) for worker in members]
    return SeriesList(series=[one for one in found if one.points])


@router.get("/checkpoints", summary="List the recorded checkpoints")
async def list_checkpoints(job: str, master: Running) -> CheckpointList:
    """Return the checkpoints, newest first. The next attempt resumes from the first one."""
    async with master.database.read() as connection:
        await jobs.get(connection, job)
        found = await checkpoints.of_job(connection, job)
    return CheckpointList(checkpoints=[_shown(Checkpoint, checkpoint) for checkpoint in found])


@router.get("/artifacts", summary="List the artifacts")
async def list_artifacts(job: str, master: Running) -> ArtifactList:
    """Return the artifacts, sorted by name."""
    async with master.database.read() as connection:
        await jobs.get(connection, job)
        found = await artifacts.of_job(connection, job)
    return ArtifactList(artifacts=[_shown(Artifact, artifact) for artifact in found])


@router.get("/artifacts/{name}", summary="Download an artifact", response_class=StreamingResponse)
async def download(job: str, name: str, master: Running) -> StreamingResponse:
    """Return the artifact's content. The header `X-Content-SHA256` contains its digest."""
    async with master.database.read() as connection:
        await jobs.get(connection, job)
        artifact = await artifacts.get(connection, job, name)
    headers = {
        "Content-Length": str(artifact.size),
        "Content-Disposition": f'attachment; filename="{artifact.name}"',
        "X-Content-SHA256": artifact.sha256,
    }
    return StreamingResponse(await master.blobs.read(job, artifact.blob), 200, headers, "application/octet-stream")


async def _series(master: Master, worker: WorkerRecord, points: int) -> Series:
    steps = await master.progress.series(StreamKey(worker.job, worker.attempt, worker.rank, "progress"), points)
    return Series(attempt=worker.attempt, rank=worker.rank, role=worker.role, role_rank=worker.role_rank, points=steps)


def _shown(kind: Callable[..., Any], record: Any) -> Any:
    """The record as a document of this kind, which has a part of its fields."""
    names = kind.model_fields  # pyright: ignore[reportFunctionMemberAccess]
    return kind(**{name: getattr(record, name) for name in names})
