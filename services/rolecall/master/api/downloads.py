"""The routes that download the files of a job: artifacts, and checkpoints as ZIP archives."""

import hashlib
import io
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated
from zipfile import ZipFile, ZipInfo

from fastapi import APIRouter, Depends, Header, HTTPException, Path, Query
from fastapi.responses import Response, StreamingResponse

from rolecall.master.api.auth import USERS, Running, needs, sees_job
from rolecall.master.api.error_handlers import documented
from rolecall.master.api.headers import with_headers
from rolecall.master.api.parameters import JobId
from rolecall.master.program import Master
from rolecall.master.store import artifacts, checkpoints, jobs
from rolecall.master.store.records import ArtifactRecord
from rolecall.spec.bounds import MAX_BIGINT, MAX_INTEGER
from rolecall.spec.errors import NotFound
from rolecall.spec.plan import CheckpointManifest

router = APIRouter(prefix="/jobs/{job}", dependencies=[Depends(needs(*USERS)), Depends(sees_job)], tags=["results"])
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_FILE = ("Accept-Ranges", "Content-Disposition", "ETag", "X-Content-SHA256")
"""The headers of every response about an artifact."""
_UNCHANGED = {304: {"description": "The file has the digest in `If-None-Match`.", **with_headers(*_FILE)}}
_RESPONSES = {
    200: {"description": "The whole file.", "content": _BYTES, **with_headers(*_FILE)},
    206: {"description": "The requested range.", "content": _BYTES, **with_headers(*_FILE, "Content-Range")},
    **_UNCHANGED,
}
_ARCHIVE = {
    200: {
        "description": "The archive.",
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
        **with_headers("Content-Disposition", "ETag"),
    }
}
ArtifactName = Annotated[str, Path(description="The artifact's name.")]
IfNoneMatch = Annotated[
    str | None, Header(max_length=1000, description="Answer 304 if the artifact has one of these `ETag`s.")
]
Step = Annotated[int, Path(ge=0, le=MAX_BIGINT, description="The step after which it was written.")]
Attempt = Annotated[
    int | None, Query(ge=1, le=MAX_INTEGER, description="The attempt that wrote it; the newest by default.")
]


@router.get(
    "/artifacts/{name}",
    summary="Download an artifact",
    response_class=StreamingResponse,
    responses={**_RESPONSES, **documented(416)},
)
async def download_artifact(  # noqa: PLR0917 - the framework passes by name
    job: JobId,
    name: ArtifactName,
    master: Running,
    wanted: Annotated[str | None, Header(alias="Range", max_length=100, description="One range of bytes.")] = None,
    if_range: Annotated[
        str | None, Header(max_length=100, description="Ignore the range unless the artifact has this `ETag`.")
    ] = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return the artifact's content, or a range of it. `ETag` and `X-Content-SHA256` have its SHA-256."""
    artifact, headers = await _artifact(master, job, name)
    if _has(artifact, if_none_match):
        return Response(None, HTTPStatus.NOT_MODIFIED, headers)
    status, start, length = HTTPStatus.OK, 0, artifact.size
    chosen = wanted if if_range in {None, headers["ETag"]} else None
    if chosen is not None and (found := byte_range(chosen, artifact.size)) is not None:
        status, (start, length) = HTTPStatus.PARTIAL_CONTENT, found
        headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{artifact.size}"
    headers["Content-Length"] = str(length)
    chunks = await master.blobs.read(job, artifact.blob, start, length)
    return StreamingResponse(chunks, status, headers, "application/octet-stream")


@router.head(
    "/artifacts/{name}",
    summary="Show the headers of an artifact",
    response_class=Response,
    responses={
        200: {"description": "The artifact exists.", **with_headers(*_FILE, "Content-Length")},
        **_UNCHANGED,
    },
)
async def show_artifact(job: JobId, name: ArtifactName, master: Running, if_none_match: IfNoneMatch = None) -> Response:
    """Return the headers of a download of the whole artifact, such as its size and SHA-256."""
    artifact, headers = await _artifact(master, job, name)
    if _has(artifact, if_none_match):
        return Response(None, HTTPStatus.NOT_MODIFIED, headers)
    headers["Content-Length"] = str(artifact.size)
    return Response(None, HTTPStatus.OK, headers, "application/octet-stream")


@router.get(
    "/checkpoints/{step}", summary="Download a checkpoint", response_class=StreamingResponse, responses={**_ARCHIVE}
)
async def download_checkpoint(job: JobId, step: Step, master: Running, attempt: Attempt = None) -> StreamingResponse:
    """Return a ZIP archive with the parts of the checkpoint and `manifest.json`, which names their files in `blob`."""
    manifest, headers = await _checkpoint(master, job, step, attempt)
    return StreamingResponse(_archive(master, job, manifest), 200, headers, "application/zip")


@router.head(
    "/checkpoints/{step}",
    summary="Show the headers of a checkpoint",
    response_class=Response,
    responses={200: {"description": "The checkpoint exists.", **with_headers("Content-Disposition", "ETag")}},
)
async def show_checkpoint(job: JobId, step: Step, master: Running, attempt: Attempt = None) -> Response:
    """Return the headers of a download of the checkpoint. The size of the archive is not known before."""
    _, headers = await _checkpoint(master, job, step, attempt)
    # Not a plain response, which would say that the archive has no bytes.
    return StreamingResponse(iter(()), 200, headers, "application/zip")


async def _artifact(master: Master, job: str, name: str) -> tuple[ArtifactRecord, dict[str, str]]:
    """An artifact, and the headers of responses about it. Raises `NotFound`."""
    async with master.database.read() as connection:
        await jobs.summary(connection, job)
        artifact = await artifacts.get(connection, job, name)
    return artifact, {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{artifact.name}"',
        "ETag": f'"{artifact.sha256}"',
        "X-Content-SHA256": artifact.sha256,
    }


def _has(artifact: ArtifactRecord, if_none_match: str | None) -> bool:
    """True if the caller has the content of the artifact already."""
    return if_none_match is not None and (if_none_match.strip() == "*" or artifact.sha256 in if_none_match)


async def _checkpoint(
    master: Master, job: str, step: int, attempt: int | None
) -> tuple[CheckpointManifest, dict[str, str]]:
    """The manifest of a checkpoint, and the headers of responses about it. Raises `NotFound`."""
    async with master.database.read() as connection:
        await jobs.summary(connection, job)
        known = [one.manifest for one in await checkpoints.of_job(connection, job)]
    chosen = (one for one in known if one.step == step and attempt in {None, one.attempt})
    if (manifest := next(chosen, None)) is None:
        steps = ", ".join(str(one.step) for one in known) or "none"
        raise NotFound(f"job {job} has no checkpoint of step {step}; there are: {steps}")
    for part in manifest.parts:
        if await master.blobs.size(job, part.blob) is None:
            raise NotFound(f"the checkpoint of step {step} of job {job} lacks its part {part.name}")
    headers = {
        "Content-Disposition": f'attachment; filename="{job}-step-{step}.zip"',
        "ETag": f'"{hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()}"',
    }
    return manifest, headers


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """The start and length of a range (RFC 9110, 14.1.2), or None for several ranges and other units.

    Raises a 416 for a range that is outside the file.
    """
    found = _RANGE.fullmatch(header.replace(" ", ""))
    if found is None or found[1] + found[2] == "":
        return None
    first, last = found[1], found[2]
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end:
        headers = {"Content-Range": f"bytes */{size}"}
        raise HTTPException(416, f"the range {header} is outside the file, which has {size} bytes", headers)
    return start, end - start + 1


class _Sink(io.RawIOBase):
    """Collects what a `ZipFile` writes. It can't seek, so that sizes follow the content."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """The bytes that were written since the last call."""
        taken, self._written = b"".join(self._written), []
        return taken


async def _archive(master: Master, job: str, manifest: CheckpointManifest) -> AsyncIterator[bytes]:
    """The archive in chunks. The entries are the blobs' names, which are checked, and not compressed."""
    sink = _Sink()
    with ZipFile(sink, "w") as archive:
        archive.writestr(ZipInfo("manifest.json"), manifest.model_dump_json(indent=2))
        for part in manifest.parts:
            chunks = await master.blobs.read(job, part.blob)
            with archive.open(ZipInfo(part.blob), "w", force_zip64=True) as entry:
                async for chunk in chunks:
                    entry.write(chunk)
                    yield sink.take()
            yield sink.take()
    yield sink.take()
