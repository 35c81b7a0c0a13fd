# pyright: standard
"""The storage of checkpoints and artifacts: an operator's fsspec URL, or the master's volume."""

import hashlib
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from rolecall.daemon_thread import start_in_daemon_thread
from rolecall.durable_files import sync
from rolecall.spec.errors import BlobsUnavailable, NoSuchBlob
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.wire import ArtifactNotice

_T = TypeVar("_T")
_DEADLINE_S, _BYTES_PER_S = 300.0, 5e6
"""The time limit of a call to the store: a constant, and the size of the file divided by a minimum rate."""
_FOLDER_S = 10.0
"""The time limit for making a folder. A new worker does that before it sends heartbeats, for which its node waits."""


class JobBlobs(Protocol):
    """The files of one job: an `AttemptClient` for the master's volume, which syncs them, or `SharedBlobs`."""

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Store the file at `path` as `<attempt>/<name>`, completely or not at all."""
        ...

    def get(self, blob: str, path: Path) -> None:
        """Copy `<attempt>/<name>` of any attempt of this job to `path`; raises `NoSuchBlob` if it doesn't exist."""
        ...


class Records(Protocol):
    """The records of a job's stored files, which the master keeps."""

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Complete a checkpoint, whose parts are stored; the next attempt resumes from it."""
        ...

    def record_artifact(self, notice: ArtifactNotice) -> None:
        """Make a stored file one of the job's artifacts."""
        ...


class SharedBlobs:
    """Blobs below an fsspec URL, which must be accessible from every node.

    Every method ends in time, even if the store hangs. It raises `BlobsUnavailable` if the store fails or hangs.
    """

    def __init__(self, url: str, job: str, attempt: int) -> None:
        self._files, root = fsspec.url_to_fs(url)
        self._job = f"{root.rstrip('/')}/{job}"
        self._attempt = attempt
        self._calls = _Calls()
        make_local_folder(url, job)

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Write to a temporary name and move into place. Readers check the manifest's checksum.

        On a file system, the content is durable before the name, and the name before the return, so that no manifest
        names a file that a power failure emptied. Object stores are durable without this.
        """
        self._calls.run(f"did not store {name}", lambda: self._put(name, path), path.stat().st_size)

    def get(self, blob: str, path: Path) -> None:
        what, source = f"did not send {blob}", f"{self._job}/{blob}"
        try:
            size = self._calls.run(what, lambda: self._files.size(source))
            self._calls.run(what, lambda: self._files.get_file(source, str(path)), size or 0)
        except BlobsUnavailable as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise NoSuchBlob(f"the blob store has no {source}") from error
            raise

    def _put(self, name: str, path: Path) -> None:
        final = f"{self._job}/{self._attempt}/{name}"
        partial = f"{final}.{uuid.uuid4().hex}.partial"
        is_local = isinstance(self._files, LocalFileSystem)
        self._files.makedirs(final.rsplit("/", 1)[0], exist_ok=True)
        self._files.put_file(str(path), partial)
        if is_local:
            sync(Path(partial))
        self._files.mv(partial, final)
        for folder in Path(final).parents if is_local else ():  # Also those that were just created.
            sync(folder)
            if folder == Path(self._job):
                break


class _Calls:
    """Calls to the blob store, each with a time limit. While one exceeds it, further ones fail at once."""

    def __init__(self) -> None:
        self._hung: Future[Any] | None = None

    def run(self, failure: str, function: Callable[[], _T], size: int = 0, limit_s: float | None = None) -> _T:
        """The result of a function that transfers `size` bytes. Raises `BlobsUnavailable` for each of its errors."""
        failed = f"the blob store (ROLECALL_BLOB_URL) {failure}"
        if self._hung is not None and not self._hung.done():
            raise BlobsUnavailable(f"{failed}: an earlier call to it still hangs")
        call = start_in_daemon_thread(function)
        limit_s = limit_s or _DEADLINE_S + size / _BYTES_PER_S
        try:
            return call.result(limit_s)
        except Exception as error:  # fsspec's backends raise errors of their own libraries
            if call.done():
                raise BlobsUnavailable(f"{failed}: {type(error).__name__}: {error}") from error
            self._hung = call
            raise BlobsUnavailable(f"{failed}: it gave no answer for {limit_s:.0f} s") from None


def make_local_folder(url: str, job: str) -> Path | None:
    """Create the job's folder durably if the store at `url` is a file system, and return it; None for other stores.

    Confined workers can't access its parents. Raises `BlobsUnavailable` if the file system fails or hangs.
    """
    files, root = fsspec.url_to_fs(url)
    if not isinstance(files, LocalFileSystem):
        return None
    folder = Path(root, job)

    def make() -> None:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)

    _Calls().run(f"has no folder {folder}", make, limit_s=_FOLDER_S)
    return folder


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
