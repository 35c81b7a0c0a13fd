"""The storage of checkpoints and artifacts: an operator's fsspec URL, or the master's volume."""

import hashlib
import os
import uuid
from pathlib import Path
from typing import Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

from rolecall.runtime.attempt_client import AttemptClient
from rolecall.spec.errors import BlobsUnavailable, NoSuchBlob
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.wire import ArtifactNotice

_CHUNK_BYTES = 1 << 20


class JobBlobs(Protocol):
    """The files of one job."""

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


class MasterBlobs:
    """Blobs on the master's volume, which checks, syncs and renames them."""

    def __init__(self, client: AttemptClient) -> None:
        self._client = client

    def put(self, name: str, path: Path, sha256: str) -> None:
        self._client.put_blob(name, path, sha256)

    def get(self, blob: str, path: Path) -> None:
        self._client.get_blob(blob, path)


class SharedBlobs:
    """Blobs below an fsspec URL, which must be accessible from every node."""

    def __init__(self, url: str, job: str, attempt: int) -> None:
        self._files, root = fsspec.url_to_fs(url)
        self._job = f"{root.rstrip('/')}/{job}"
        self._attempt = attempt
        if isinstance(self._files, LocalFileSystem):
            make_job_folder(Path(self._job))

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Write to a temporary name and move into place. Readers check the manifest's checksum.

        On a file system, the content is durable before the name, and the name before the return, so that no manifest
        names a file that a power failure emptied. Object stores are durable without this. Raises `BlobsUnavailable` if
        the store fails.
        """
        final = f"{self._job}/{self._attempt}/{name}"
        partial = f"{final}.{uuid.uuid4().hex}.partial"
        is_local = isinstance(self._files, LocalFileSystem)
        try:
            self._files.makedirs(final.rsplit("/", 1)[0], exist_ok=True)
            self._files.put_file(str(path), partial)
            if is_local:
                sync(Path(partial))
            self._files.mv(partial, final)
            for folder in Path(final).parents if is_local else ():  # Also those that were just created.
                sync(folder)
                if folder == Path(self._job):
                    break
        except OSError as error:
            raise BlobsUnavailable(f"the blob store (ROLECALL_BLOB_URL) did not store {name}: {error}") from error

    def get(self, blob: str, path: Path) -> None:
        try:
            self._files.get_file(f"{self._job}/{blob}", str(path))
        except FileNotFoundError as error:
            raise NoSuchBlob(f"the blob store has no {self._job}/{blob}") from error


def make_job_folder(folder: Path) -> None:
    """Create a job's folder in a store that is a file system, durably. Confined workers can't access its parents."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
