"""Storage of checkpoint parts and artifacts. A blob is complete, verified and durable, or it doesn't exist."""

import hashlib
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from functools import partial
from operator import methodcaller
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import fsspec  # pyright: ignore[reportMissingTypeStubs]

from rolecall.durable_files import sync
from rolecall.logs import about
from rolecall.master.blob_stores import FolderStore, open_store
from rolecall.master.space import bytes_below
from rolecall.master.storage_errors import StoreUnavailable
from rolecall.master.store_threads import StoreFile, StoreThreads
from rolecall.spec.bounds import MAX_FILES
from rolecall.spec.errors import NotFound, QuotaExceeded, RolecallError, SettingsError, StaleAttempt
from rolecall.spec.redaction import redact_text

_CHUNK_BYTES = 1 << 20
_LOG = logging.getLogger(__name__)
_UPLOAD = ".upload-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class BlobError(RolecallError):
    """The content or name of an upload is invalid."""


def check_url(url: str) -> None:
    """Raise `SettingsError` unless a library for the URL's scheme is installed. Opens no connection."""
    scheme, separator, _ = url.partition("://")
    # Even an invalid URL can contain a password.
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

    Workers write to a URL directly; the master only lists, reads and deletes there. Nothing here blocks the event loop.
    Every call to the store ends in time. It raises `StoreUnavailable` if it takes too long or the store fails.
    """

    def __init__(
        self,
        root: Path,
        url: str | None,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._root = root
        self._store = open_store(root, url)
        self._uploads = None if url is None else FolderStore(root)
        """The files that workers uploaded before the operator set the URL."""
        place = "ROLECALL_BLOB_URL" if url else "in ROLECALL_DATA"
        self._threads = StoreThreads(f"the blob store ({place})", timeout_s, now=clock, observe=observe)
        self._counts: dict[str, int] = {}

    async def put(self, job: str, blob: str, sha256: str | None, chunks: AsyncIterator[bytes]) -> tuple[int, str]:
        """Store an upload; return its size and SHA-256.

        Raises `BlobError` if the SHA-256 differs, `QuotaExceeded` if the job has too many blobs (even empty ones take
        space), and `StaleAttempt` if the sweep after its attempt has deleted it meanwhile.
        """
        path = self._root / _path(job, blob)
        await self._threads.run(lambda: self._admit(job))
        file = StoreFile(self._threads, lambda: _Upload(path, self._root))
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
        """The blob's size in bytes, or None if it doesn't exist."""
        with suppress(FileNotFoundError):
            return await self._threads.run(lambda: self._store.size(_path(job, blob)))
        return None

    async def delete(self, job: str, blob: str) -> None:
        await self._threads.run(lambda: self._store.delete(_path(job, blob)))

    async def sweep(self, job: str, attempt: int, wanted: set[str]) -> int:
        """Delete the unreferenced files of attempts up to `attempt`: all except `wanted`. Returns their number.

        These are incomplete uploads, parts of checkpoints that were never recorded, and replaced artifacts.
        """
        leftovers = await self._threads.run(lambda: self._leftovers(job, attempt, wanted))
        for leftover in leftovers:
            await self._threads.run(partial(self._store.delete, leftover))
        return len(leftovers)

    async def digest(self, job: str, blob: str) -> tuple[int, str] | None:
        """The size and SHA-256 of the blob's current content, or None if it doesn't exist."""
        digest, size = hashlib.sha256(), 0
        try:
            chunks = await self.read(job, blob)
        except NotFound:
            return None
        async for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
        return size, digest.hexdigest()

    async def is_populated(self) -> bool:
        """Return whether the store contains anything. One that is not mounted is empty."""
        return await self._threads.run(self._store.is_populated)

    async def used(self, job: str, exclude: Collection[str] = ()) -> int:
        """The total size on the master's volume of the job's complete blobs, except `exclude`."""
        return await self._threads.run(lambda: self._used(job, exclude))

    async def remove_job(self, job: str) -> None:
        """Delete all blobs of a job."""
        _checked(job)  # Otherwise this could delete the root or another folder.
        self._counts.pop(job, None)
        await self._threads.run(lambda: self._store.remove(job))
        if self._uploads is not None:
            await self._threads.run(partial(self._uploads.remove, job))

    async def clear_uploads(self, before: float) -> int:
        """Delete incomplete uploads of a killed master. Returns their number.

        They were last written before the time `before`, in seconds since 1970.
        """
        return await self._threads.run(lambda: self._clear_uploads(before))

    async def read(self, job: str, blob: str, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Open the blob, and return `length` bytes from `start` in chunks, by default all.

        Raises `NotFound` immediately if it doesn't exist.
        """

        def opened() -> IO[bytes]:
            found = self._store.open(_path(job, blob))
            if start:
                found.seek(start)
            return found

        file = StoreFile(self._threads, opened)
        try:
            await file.opened()
        except FileNotFoundError:
            raise NotFound(f"job {job} has no blob {blob!r}") from None
        except BaseException:
            file.close(methodcaller("close"))
            raise
        return _chunks(file, f"{job}/{blob}", length)

    @property
    def hung(self) -> int:
        """The number of calls to the store that exceed their time limit and still occupy a thread."""
        return self._threads.hung

    def close(self) -> None:
        self._threads.close()

    def _leftovers(self, job: str, attempt: int, wanted: set[str]) -> list[str]:
        found: list[str] = []
        for path in self._store.find(job):
            blob = path.removeprefix(f"{job}/")
            number = blob.partition("/")[0]
            if blob not in wanted and number.isdecimal() and int(number) <= attempt:
                found.append(path)
        return found

    def _used(self, job: str, exclude: Collection[str]) -> int:
        folder = self._root / job

        def counts(path: Path) -> bool:
            return not path.name.startswith(_UPLOAD) and path.relative_to(folder).as_posix() not in exclude

        return bytes_below(folder, counts)

    def _admit(self, job: str) -> None:
        """Count an upload. Replaced and deleted blobs count until the limit is reached and the files are counted."""
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


class _Upload:
    """A file that doesn't have its final name yet. All methods block."""

    def __init__(self, path: Path, root: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BlobError(f"a part of the path {path.relative_to(root)} is a blob; choose another name") from None
        self._path = path
        self._root = root
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
        """Make the content durable, then the name, and the folders that this upload or another one has just created."""
        self._file.flush()
        os.fsync(self._file.fileno())
        try:
            os.replace(self._file.name, self._path)
        except IsADirectoryError:
            path = self._path.relative_to(self._root)
            raise BlobError(f"blobs are stored below {path}; choose another name") from None
        for folder in self._path.parents:
            sync(folder)
            if folder == self._root:
                break

    def close(self) -> None:
        """Close the file, and delete it unless it has its final name."""
        with suppress(OSError):  # of a full volume, where buffered data can't be written
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)


def _checked(blob: str) -> str:
    if not _NAME.fullmatch(blob) or len(blob) > 255:
        raise BlobError(
            f"{blob!r} is not a blob name; valid are letters, digits, '.', '_', '-', in parts separated by '/'"
        )
    return blob


def _path(job: str, blob: str) -> str:
    return f"{job}/{_checked(blob)}"


async def _write(file: StoreFile[_Upload], chunks: AsyncIterator[bytes]) -> None:
    waiting = bytearray()
    async for chunk in chunks:
        waiting += chunk
        if len(waiting) >= _CHUNK_BYTES:
            whole = bytes(waiting)
            await file.run(lambda upload, whole=whole: upload.write(whole))
            waiting.clear()
    await file.run(lambda upload: upload.write(bytes(waiting)))


async def _chunks(file: StoreFile[IO[bytes]], name: str, length: int | None) -> AsyncIterator[bytes]:
    left = length
    try:
        while left != 0:
            size = _CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)
            chunk = await file.run(lambda opened, size=size: opened.read(size))
            if not chunk:
                return
            left = None if left is None else left - len(chunk)
            yield chunk
    except StoreUnavailable as error:
        # The response has started, so the client only sees that the connection breaks off.
        _LOG.error("the download of blob %s failed: %s", name, error, extra=about("download_failed"))
        raise
    finally:
        file.close(methodcaller("close"))
