"""Checkpoint parts and artifacts: whole files, checked and durable, or none at all."""

import hashlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import fsspec  # pyright: ignore[reportMissingTypeStubs]

from rolecall.edge.logs import about
from rolecall.master.blob_stores import open_store
from rolecall.master.space import bytes_below
from rolecall.master.storage_errors import StoreUnavailable
from rolecall.master.store_threads import StoreFile, StoreThreads
from rolecall.spec.bounds import MAX_FILES
from rolecall.spec.errors import NotFound, QuotaExceeded, RolecallError, SettingsError, StaleAttempt
from rolecall.spec.redaction import redact_text

_CHUNK_BYTES = 1 << 20
_log = logging.getLogger(__name__)
_UPLOAD = ".upload-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class BlobError(RolecallError):
    """An upload's bytes or name are not what they should be."""


def check_url(url: str) -> None:
    """Raise `SettingsError` unless there is a library for what the URL begins with; calls nobody."""
    scheme, separator, _ = url.partition("://")
    # Even what is no URL may hold a password.
    shown = redact_text(url) if separator else url.rpartition("@")[2]
    try:
        fsspec.get_filesystem_class(scheme if separator else "no scheme")  # pyright: ignore[reportUnknownMemberType]
    except ImportError as error:
        remedy = "install it in master and nodes; the images take EXTRA_PACKAGES when they are built"
        raise SettingsError(f"ROLECALL_BLOB_URL={shown}: {error}: {remedy}") from None
    except ValueError:
        raise SettingsError(
            f"ROLECALL_BLOB_URL={shown} is not a URL that fsspec knows, like s3://bucket/folder or file:///mnt/shared"
        ) from None


class Blobs:
    """The blobs of all jobs: files `<root>/<job>/<attempt>/<name>`, or the same below an fsspec URL.

    Below a URL workers write for themselves; the master only looks, reads and deletes. Nothing here blocks the event
    loop, and every call to the store ends in time: if it does not, or if the store fails, with `StoreUnavailable`.
    """

    def __init__(
        self, root: Path, url: str | None, timeout_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._store = open_store(root, url)
        place = "ROLECALL_BLOB_URL" if url else "in ROLECALL_DATA"
        self._threads = StoreThreads(f"the blob store ({place})", timeout_s, now=clock)
        self._counts: dict[str, int] = {}

    async def put(self, job: str, blob: str, sha256: str | None, chunks: AsyncIterator[bytes]) -> tuple[int, str]:
        """Store an upload; return its size and SHA-256.

        Raises `BlobError` when it is not the announced one, `QuotaExceeded` when the job has too many blobs, which take
        room even where they are empty, and `StaleAttempt` when the sweep behind its attempt
        deleted it meanwhile.
        """
        path = self._file(job, blob)
        await self._threads.run(lambda: self._admit(job))
        file = StoreFile(self._threads, lambda: _Upload(path))
        try:
            upload = await file.opened()
            await _write(file, chunks)
            if sha256 is not None and upload.sha256 != sha256.lower():
                raise BlobError(
                    f"blob {blob}: X-Content-SHA256 says {sha256}, the body has {upload.sha256}; send it again"
                )
            await file.run(_Upload.settle)
        except FileNotFoundError:
            raise StaleAttempt(f"blob {blob} of job {job} is deleted: its attempt ended during the upload") from None
        finally:
            file.close(_Upload.close)
        return upload.size, upload.sha256

    async def size(self, job: str, blob: str) -> int | None:
        """The blob's size in bytes, or None when there is no such blob."""
        return await self._threads.run(lambda: self._size(job, blob))

    async def delete(self, job: str, blob: str) -> None:
        """Delete a blob; nothing happens if it is gone already."""
        await self._threads.run(lambda: self._store.delete(_path(job, blob)))

    async def sweep(self, job: str, attempt: int, wanted: set[str]) -> int:
        """Delete what attempts up to `attempt` left and nobody knows of (uploads cut off, parts of checkpoints that
        were never closed, artifacts that a later one replaced); return how many files that were.
        """
        leftovers = await self._threads.run(lambda: self._leftovers(job, attempt, wanted))
        for leftover in leftovers:
            await self._threads.run(partial(self._store.delete, leftover))
        return len(leftovers)

    async def digest(self, job: str, blob: str) -> tuple[int, str] | None:
        """The size and SHA-256 of the blob's bytes as the store has them now; None when there is no such blob."""
        digest, size = hashlib.sha256(), 0
        try:
            await self._threads.run(self._store.refresh)
            chunks = await self.read(job, blob)
        except NotFound:
            return None
        async for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
        return size, digest.hexdigest()

    async def is_populated(self) -> bool:
        """Whether the store has anything at all: one that is not mounted has nothing."""
        return await self._threads.run(self._store.is_populated)

    async def used(self, job: str, besides: Collection[str] = ()) -> int:
        """Bytes on the master's volume of the job's whole blobs, those of `besides` not counted."""
        return await self._threads.run(lambda: self._used(job, besides))

    async def remove_job(self, job: str) -> None:
        """Delete all blobs of a job; nothing happens if there are none."""
        _checked(job)  # Never the root, nor a folder beside it.
        self._counts.pop(job, None)
        await self._threads.run(lambda: self._store.remove(job))

    async def clear_uploads(self, before: float) -> int:
        """Delete what a master that was killed left of uploads, last written before the time `before` (seconds since
        1970); return how many files that were.
        """
        return await self._threads.run(lambda: self._clear_uploads(before))

    async def read(self, job: str, blob: str) -> AsyncIterator[bytes]:
        """Open the blob; return its bytes in chunks. Raises `NotFound` at once when there is no such blob."""
        file = StoreFile(self._threads, lambda: self._store.open(_path(job, blob)))
        try:
            await file.opened()
        except FileNotFoundError:
            raise NotFound(f"job {job} has no blob {blob!r}") from None
        except BaseException:
            file.close(_close)
            raise
        return _chunks(file, f"{job}/{blob}")

    @property
    def hung(self) -> int:
        """How many calls to the store exceed their time limit, and still keep a thread."""
        return self._threads.hung

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def _size(self, job: str, blob: str) -> int | None:
        try:
            return self._store.size(_path(job, blob))
        except FileNotFoundError:
            return None

    def _leftovers(self, job: str, attempt: int, wanted: set[str]) -> list[str]:
        """The path of each file that a sweep is to delete."""
        found: list[str] = []
        for path in self._store.find(job):
            blob = path.removeprefix(f"{job}/")
            number = blob.partition("/")[0]
            if blob not in wanted and number.isdecimal() and int(number) <= attempt:
                found.append(path)
        return found

    def _used(self, job: str, besides: Collection[str]) -> int:
        folder = self._root / job

        def counts(path: Path) -> bool:
            return not path.name.startswith(_UPLOAD) and path.relative_to(folder).as_posix() not in besides

        return bytes_below(folder, counts)

    def _admit(self, job: str) -> None:
        """Count one more upload. Blobs that are replaced or deleted count until the limit makes us look."""
        count = self._counts.get(job)
        if count is None or count >= MAX_FILES:
            count = sum(len(names) for _, _, names in os.walk(self._root / job))
        if count >= MAX_FILES:
            raise QuotaExceeded(f"job {job} has {count} blobs, and a job may have {MAX_FILES}: put more into each")
        self._counts[job] = count + 1

    def _clear_uploads(self, before: float) -> int:
        cleared = 0
        for path in self._root.rglob(f"{_UPLOAD}*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    cleared += 1
        return cleared

    def _file(self, job: str, blob: str) -> Path:
        return self._root / _path(job, blob)


class _Upload:
    """A file without its name yet. All of it blocks."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = NamedTemporaryFile(dir=path.parent, prefix=_UPLOAD, delete=False)  # noqa: SIM115 - see `close`
        self._digest = hashlib.sha256()
        self.size = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self._file.write(chunk)
        self.size += len(chunk)

    def settle(self) -> None:
        """Make the bytes durable first and the name after them."""
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._file.name, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Close the file; delete it unless it has its name."""
        with suppress(OSError):  # of a full volume: what is not written yet can't be
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def _checked(blob: str) -> str:
    if not _NAME.fullmatch(blob) or len(blob) > 255:
        raise BlobError(
            f"{blob!r} is not a blob name; legal are letters, digits, '.', '_', '-', in parts separated by '/'"
        )
    return blob


def _path(job: str, blob: str) -> str:
    return f"{job}/{_checked(blob)}"


def _close(file: IO[bytes]) -> None:
    file.close()


async def _write(file: StoreFile[_Upload], chunks: AsyncIterator[bytes]) -> None:
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        if len(waiting) >= _CHUNK_BYTES:
            whole = bytes(waiting)
            await file.run(lambda upload, whole=whole: upload.write(whole))
            waiting.clear()
    await file.run(lambda upload: upload.write(bytes(waiting)))


async def _chunks(file: StoreFile[IO[bytes]], name: str) -> AsyncIterator[bytes]:
    try:
        while chunk := await file.run(lambda opened: opened.read(_CHUNK_BYTES)):
            yield chunk
    except StoreUnavailable as error:
        # The answer has begun: all that its reader sees is a connection that breaks off.
        _log.error("the download of blob %s failed: %s", name, error, extra=about("download_failed"))
        raise
    finally:
        file.close(_close)
