"""Checkpoint parts and artifacts: whole files, checked and durable, or none at all."""

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any, Protocol, cast

import fsspec  # pyright: ignore[reportMissingTypeStubs]

from rolecall.spec.errors import NotFound, RolecallError, SettingsError, StaleAttempt

_PIECE = 1 << 20
_UPLOAD = ".upload-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class Digest(Protocol):
    """A hash that grows, as `hashlib` makes them."""

    def update(self, data: bytes, /) -> None:
        """Take in more bytes."""
        ...


class BlobError(RolecallError):
    """An upload's bytes or name are not what they should be."""


def check_url(url: str) -> None:
    """Raise `SettingsError` unless there is a library for what the URL begins with; calls nobody."""
    scheme, separator, _ = url.partition("://")
    try:
        fsspec.get_filesystem_class(scheme if separator else "no scheme")  # pyright: ignore[reportUnknownMemberType]
    except ImportError as error:
        remedy = "install it in master and nodes; the images take EXTRA_PACKAGES when they are built"
        raise SettingsError(f"ROLECALL_BLOB_URL={url}: {error}: {remedy}") from None
    except ValueError:
        raise SettingsError(
            f"ROLECALL_BLOB_URL={url} is no URL that fsspec knows, like s3://bucket/folder or file:///mnt/shared"
        ) from None


class Blobs:
    """The blobs of all jobs: files `<root>/<job>/<attempt>/<name>`, or the same below an fsspec URL.

    Below a URL workers write for themselves; the master only looks, reads and deletes.
    """

    def __init__(self, root: Path, url: str | None) -> None:
        self._root = root
        self._url = url.rstrip("/") if url else None

    async def put(self, job: str, blob: str, sha256: str | None, pieces: AsyncIterator[bytes]) -> tuple[int, str]:
        """Store an upload; return its size and SHA-256. Raises `BlobError` when it is not the announced one."""
        path = self._file(job, blob)
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=_UPLOAD, delete=False) as file:
            try:
                digest = await _write(file, pieces)
                if sha256 is not None and digest != sha256.lower():
                    raise BlobError(
                        f"blob {blob}: X-Content-SHA256 says {sha256}, the body has {digest}; send it again"
                    )
                size = file.tell()
                await asyncio.to_thread(_settle, file, path)
            except FileNotFoundError:
                raise StaleAttempt(f"the upload of {blob} came too late: its attempt or job is over") from None
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(file.name)
                raise
        return size, digest

    async def size(self, job: str, blob: str) -> int | None:
        """The blob's size in bytes, or None when there is no such blob."""
        return await asyncio.to_thread(self._size, job, blob)

    async def delete(self, job: str, blob: str) -> None:
        """Delete a blob; nothing happens if it is gone already."""
        await asyncio.to_thread(self._delete, job, blob)

    async def sweep(self, job: str, attempt: int, wanted: set[str]) -> int:
        """Delete what attempts up to `attempt` left and nobody knows of (uploads cut off, parts of checkpoints that
        were never closed, artifacts that a later one replaced); return how many files that were.
        """
        return await asyncio.to_thread(self._sweep, job, attempt, wanted)

    async def digest(self, job: str, blob: str) -> tuple[int, str] | None:
        """The size and SHA-256 of the blob's bytes as the store has them now; None when there is no such blob."""
        digest, size = hashlib.sha256(), 0
        try:
            await asyncio.to_thread(_resolve_fresh, self._url or str(self._root))
            pieces = await asyncio.to_thread(self.read, job, blob)
        except NotFound:
            return None
        while piece := await asyncio.to_thread(next, pieces, b""):
            digest.update(piece)
            size += len(piece)
        return size, digest.hexdigest()

    async def is_populated(self) -> bool:
        """Whether the store has anything at all: one that is not mounted has nothing."""
        return await asyncio.to_thread(self._is_populated)

    async def used(self, job: str, besides: Collection[str]) -> int:
        """Bytes on the master's volume of the job's whole blobs, those of `besides` not counted."""
        return await asyncio.to_thread(self._used, job, besides)

    async def remove_job(self, job: str) -> None:
        """Delete all blobs of a job; nothing happens if there are none."""
        await asyncio.to_thread(self._remove_job, job)

    async def clear_uploads(self, before: float) -> int:
        """Delete what a master that was killed left of uploads, last written before the time `before` (seconds since
        1970); return how many files that were.
        """
        return await asyncio.to_thread(self._clear_uploads, before)

    def read(self, job: str, blob: str) -> Iterator[bytes]:
        """The blob's bytes in pieces. Raises `NotFound` at once when there is no such blob."""
        try:
            file = self._open(job, blob)
        except FileNotFoundError:
            raise NotFound(f"job {job} has no blob {blob!r}") from None
        return _pieces(file)

    def _size(self, job: str, blob: str) -> int | None:
        with suppress(FileNotFoundError):
            if self._url is None:
                return self._file(job, blob).stat().st_size
            system, path = _resolve(f"{self._url}/{job}/{_checked(blob)}")
            return int(system.size(path))
        return None

    def _delete(self, job: str, blob: str) -> None:
        with suppress(FileNotFoundError):
            if self._url is None:
                self._file(job, blob).unlink()
            else:
                system, path = _resolve(f"{self._url}/{job}/{_checked(blob)}")
                system.rm(path)

    def _sweep(self, job: str, attempt: int, wanted: set[str]) -> int:
        system, root = _resolve_fresh(self._url or str(self._root))
        swept = 0
        for path in system.find(f"{root}/{job}"):
            blob = path.removeprefix(f"{root}/{job}/")
            number = blob.partition("/")[0]
            if blob not in wanted and number.isdecimal() and int(number) <= attempt:
                with suppress(FileNotFoundError):
                    system.rm(path)
                swept += 1
        return swept

    def _is_populated(self) -> bool:
        system, root = _resolve_fresh(self._url or str(self._root))
        try:
            return bool(system.ls(root, detail=False))
        except FileNotFoundError:
            return False

    def _used(self, job: str, besides: Collection[str]) -> int:
        folder, used = self._root / job, 0
        for path in folder.rglob("*"):
            whole = not path.name.startswith(_UPLOAD) and path.relative_to(folder).as_posix() not in besides
            with suppress(FileNotFoundError):
                used += path.stat().st_size if whole and path.is_file() else 0
        return used

    def _remove_job(self, job: str) -> None:
        _checked(job)  # Never the root, nor a folder beside it.
        with suppress(FileNotFoundError):
            if self._url is None:
                shutil.rmtree(self._root / job)
            else:
                system, root = _resolve_fresh(self._url)
                system.rm(f"{root}/{job}", recursive=True)

    def _clear_uploads(self, before: float) -> int:
        cleared = 0
        for path in self._root.rglob(f"{_UPLOAD}*"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    cleared += 1
        return cleared

    def _open(self, job: str, blob: str) -> IO[bytes]:
        if self._url is None:
            return self._file(job, blob).open("rb")
        system, path = _resolve(f"{self._url}/{job}/{_checked(blob)}")
        return cast(IO[bytes], system.open(path, "rb"))

    def _file(self, job: str, blob: str) -> Path:
        return self._root / job / _checked(blob)


def _checked(blob: str) -> str:
    if not _NAME.fullmatch(blob) or len(blob) > 255:
        raise BlobError(f"{blob!r} is no blob name; legal are letters, digits, '.', '_', '-', in parts parted by '/'")
    return blob


def _resolve_fresh(url: str) -> tuple[Any, str]:
    """The same without what fsspec remembers of earlier listings: others write and delete there, too."""
    system, path = _resolve(url)
    system.invalidate_cache()
    return system, path


def _resolve(url: str) -> tuple[Any, str]:
    return cast(tuple[Any, str], fsspec.core.url_to_fs(url))  # pyright: ignore[reportUnknownMemberType]


async def _write(file: IO[bytes], pieces: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        if len(waiting) >= _PIECE:
            await asyncio.to_thread(_write_piece, file, digest, bytes(waiting))
            waiting.clear()
    await asyncio.to_thread(_write_piece, file, digest, bytes(waiting))
    return digest.hexdigest()


def _write_piece(file: IO[bytes], digest: "Digest", piece: bytes) -> None:
    digest.update(piece)
    file.write(piece)


def _settle(file: IO[bytes], path: Path) -> None:
    """Make the bytes durable first and the name after them."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(file.name, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece
