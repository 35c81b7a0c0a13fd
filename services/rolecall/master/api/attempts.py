"""The routes below `/internal/jobs`: streams that nodes ship, and blobs, checkpoints and artifacts of workers."""

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, Field
from sqlalchemy.ext.asyncio import AsyncConnection

from rolecall.master.api.auth import Bearing, Running, has_room, needs, require_attempt
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.parameters import JobId
from rolecall.master.field_errors import field_error
from rolecall.master.program import Master
from rolecall.master.retention import blobs_of, superfluous
from rolecall.master.space import REPORTS_FLOOR, within_reserve
from rolecall.master.store import artifacts, checkpoints, jobs
from rolecall.master.store.records import JobSummary
from rolecall.master.streams import Kind, StreamKey
from rolecall.master.token_limits import check_stored, measure, metered
from rolecall.spec.access import Scope
from rolecall.spec.bounds import MAX_BIGINT, MAX_INTEGER, MAX_PARTS, PARTS_PER_WORKER
from rolecall.spec.errors import Conflict, InvalidRequest, StaleAttempt
from rolecall.spec.model import Value
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.wire import ArtifactNotice, StreamOffset

router = APIRouter(prefix="/internal/jobs/{job}", tags=["attempts"])
_OfAttempt = Depends(require_attempt)
_MAX_PART_NAME = 255
_SHA256 = re.compile("[0-9a-f]{64}")


def _check_parts(manifest: CheckpointManifest) -> CheckpointManifest:
    """Raise `ValueError` for parts beyond the limits. Stored manifests of earlier releases can have such parts."""
    if len(manifest.parts) > MAX_PARTS:
        raise ValueError(f"a checkpoint has at most {MAX_PARTS:,} parts, and this one has {len(manifest.parts):,}")
    if len({part.name for part in manifest.parts}) < len(manifest.parts):
        raise ValueError("two parts of a checkpoint have the same name")
    if any(len(part.name) > _MAX_PART_NAME or not _SHA256.fullmatch(part.sha256) for part in manifest.parts):
        raise ValueError(f"each part has a name of at most {_MAX_PART_NAME} characters, and a SHA-256 in hexadecimal")
    return manifest


_NewManifest = Annotated[CheckpointManifest, AfterValidator(_check_parts)]


class BlobReceipt(Value):
    """The stored blob."""

    blob: str = Field(description="The blob's name below its job.")
    size: int
    sha256: str


class Recorded(Value):
    """The response to a request to record something."""

    recorded: bool
    """False if an earlier call has already recorded it."""


@router.put(
    "/attempts/{attempt}/ranks/{rank}/streams/{kind}",
    dependencies=[Depends(needs(Scope.NODE))],
    summary="Append to a log or progress stream",
    responses=documented(409),
)
async def append_to_stream(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    attempt: Annotated[int, Path(ge=1, le=MAX_INTEGER)],
    rank: Annotated[int, Path(ge=0, le=MAX_INTEGER)],
    kind: Kind,
    offset: Annotated[int, Query(ge=0, le=MAX_BIGINT)],
    request: Request,
    master: Running,
    cut: Annotated[bool, Query(description="Bytes before the offset are lost: the log may have a gap there.")] = False,
) -> StreamOffset:
    """Append the bytes that the master doesn't have yet. Returns the size of the stream."""
    key = StreamKey(job, attempt, rank, kind)
    async with master.database.read() as connection:
        record = await jobs.summary(connection, job)
    if attempt > record.attempt:
        raise StaleAttempt(f"job {job} has no attempt {attempt}; its newest is {record.attempt}")
    # The space below the reserve is for reports and progress only, because logs can wait.
    chunks = within_reserve(request.stream(), master.reserve, share=REPORTS_FLOOR if kind == "progress" else 1.0)
    size = await master.streams.append(key, offset, chunks, cut=cut and kind == "log")
    is_current = kind == "progress" and attempt == record.attempt and record.state.holds_slots
    if is_current and await master.progress.ingest(master.database, key):
        master.view.note(jobs=[job])
    master.waking.followers(job)
    return StreamOffset(size=size)


@router.put(
    "/attempts/{attempt}/blobs/{name:path}",
    status_code=201,
    dependencies=[_OfAttempt],
    summary="Upload a blob",
    responses=documented(400, 409, 413),
)
async def put_blob(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    attempt: int,
    name: str,
    request: Request,
    master: Running,
    sha256: Annotated[str | None, Header(alias="X-Content-SHA256", pattern="^[0-9a-fA-F]{64}$")] = None,
) -> BlobReceipt:
    """Store a complete file, verified and durable. A repeated upload replaces it."""
    if master.settings.blob_url is not None:
        raise Conflict("workers of this cluster store their files below ROLECALL_BLOB_URL, not at the master")
    async with master.database.read() as connection:
        record = await _check_current(connection, job, attempt)
    # Not a parameter of the API: the HTTP server has already rejected a value that is not a number.
    await master.reserve.check(int(request.headers.get("content-length", 0)))
    blob = f"{attempt}/{name}"

    async def stored() -> int:
        return await master.blobs.used(job, {blob, *await _expiring(master, job)})

    chunks = within_reserve(request.stream(), master.reserve)
    if (limit := _stored_limit(master, record.owner)) is not None:
        chunks = metered(chunks, record.owner, limit, partial(measure, master.database, master.blobs, record.owner))
    if master.job_quota.limit is not None:
        chunks = master.job_quota.within(chunks, job, stored)
    size, digest = await master.blobs.put(job, blob, sha256, _while_current(master, job, attempt, chunks))
    return BlobReceipt(blob=blob, size=size, sha256=digest)


@router.get(
    "/blobs/{number}/{name:path}",
    summary="Download a blob of any attempt",
    response_class=StreamingResponse,
    responses=documented(409),
)
async def get_blob(job: JobId, number: int, name: str, master: Running, attempt: Bearing) -> StreamingResponse:
    """Return a blob's content to a worker of the job's current attempt."""
    async with master.database.read() as connection:
        await _check_current(connection, job, attempt)
    chunks = await master.blobs.read(job, f"{number}/{name}")
    return StreamingResponse(chunks, media_type="application/octet-stream")


@router.post(
    "/attempts/{attempt}/checkpoints",
    status_code=201,
    dependencies=[_OfAttempt, Depends(has_room)],
    summary="Record a checkpoint",
    responses=documented(409),
)
async def record_checkpoint(job: JobId, attempt: int, manifest: _NewManifest, master: Running) -> Recorded:
    """Record a checkpoint, which becomes valid. All its parts must be complete."""
    if manifest.attempt != attempt:
        raise Conflict(f"the manifest is of attempt {manifest.attempt}, the call of attempt {attempt}")
    async with master.database.read() as connection:
        record = await _check_current(connection, job, attempt)
    # Each worker of the next attempts gets the manifest. A conflict would mean that this attempt is over.
    count, workers = len(manifest.parts), sum(record.roles.values())
    if count > PARTS_PER_WORKER * workers:
        legal = f"at most {PARTS_PER_WORKER} for each of the {workers} workers: put more into each part"
        raise InvalidRequest([field_error("parts", f"the checkpoint has {count:,} parts", count, legal)])
    for part in manifest.parts:
        await _check_blob(master, job, part.blob, part.size)
    async with master.database.write() as connection:
        record = await _check_current(connection, job, attempt)
        await _check_quota(connection, master, record, {part.blob: part.size for part in manifest.parts})
        fresh = await checkpoints.add(connection, job, manifest, master.clock.now())
    master.cleaner.recorded(job)
    master.waking.jobs(job)
    return Recorded(recorded=fresh)


@router.post(
    "/attempts/{attempt}/artifacts",
    status_code=201,
    dependencies=[_OfAttempt, Depends(has_room)],
    summary="Record an artifact",
    responses=documented(409),
)
async def record_artifact(job: JobId, attempt: int, notice: ArtifactNotice, master: Running) -> Recorded:
    """Record a blob as an artifact that users can download by its name."""
    await _check_blob(master, job, notice.blob, notice.size)
    async with master.database.write() as connection:
        record = await _check_current(connection, job, attempt)
        await _check_quota(connection, master, record, {notice.blob: notice.size})
        await artifacts.put(connection, job, attempt, notice, master.clock.now())
    return Recorded(recorded=True)


def _stored_limit(master: Master, owner: str) -> int | None:
    limits = master.access.limits.get(owner)
    return None if limits is None else limits.max_stored_bytes


async def _while_current(master: Master, job: str, attempt: int, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks. Raises `StaleAttempt` after the last one if the attempt has ended, because it is swept only once."""
    async for chunk in chunks:
        yield chunk
    async with master.database.read() as connection:
        await _check_current(connection, job, attempt)


async def _expiring(master: Master, job: str) -> set[str]:
    """The blobs of checkpoints that are about to be deleted."""
    async with master.database.read() as connection:
        known = await checkpoints.of_job(connection, job)
    old = superfluous(known, master.settings.keep_checkpoints)
    return blobs_of(old) - blobs_of(one.manifest for one in known if one.manifest not in old)


async def _check_quota(connection: AsyncConnection, master: Master, job: JobSummary, fresh: dict[str, int]) -> None:
    """Check the blobs that are recorded and kept, and these, against the limits of the job and of its owner.

    The master sees no uploads to a blob URL, so this enforces the limits there. Raises `QuotaExceeded` or
    `StorageLimitReached`.
    """
    limit = _stored_limit(master, job.owner)
    if master.settings.blob_url is None or (master.job_quota.limit is None and limit is None):
        return
    known = await checkpoints.of_job(connection, job.id)
    old = superfluous(known, master.settings.keep_checkpoints)
    sizes = {part.blob: part.size for one in known if one.manifest not in old for part in one.manifest.parts}
    sizes |= {artifact.blob: artifact.size for artifact in await artifacts.of_job(connection, job.id)}
    stored = sum((sizes | fresh).values())
    master.job_quota.check(job.id, stored)
    if limit is not None:
        others = await jobs.stored_bytes(connection, job.owner, exclude=[job.id])
        check_stored(job.owner, limit, others + stored)


async def _check_current(connection: AsyncConnection, job: str, attempt: int) -> JobSummary:
    record = await jobs.summary(connection, job)
    if record.attempt != attempt or not record.state.holds_slots:
        raise StaleAttempt(f"attempt {attempt} of job {job} is over (the job {record.state.predicate})")
    return record


async def _check_blob(master: Master, job: str, blob: str, size: int) -> None:
    found = await master.blobs.size(job, blob)
    if found != size:
        have = "there is no such blob" if found is None else f"it has {found}"
        raise Conflict(f"blob {blob} should have {size} bytes, but {have}; upload it first")
