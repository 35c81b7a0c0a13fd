"""Where checkpoints and artifacts go: an operator's fsspec URL, or the master's own volume."""

import hashlib
import os
import uuid
from pathlib import Path
from typing import Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

from rolecall.runtime.attempt_client import AttemptClient
from rolecall.spec.errors import BlobsUnavailable, NoSuchBlob

_PIECE = 1 << 20


class JobBlobs(Protocol):
    """Whole files, by name below one job's folder."""

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Store the file at `path` under `<attempt>/<name>`; it is there whole or not at all."""
        ...

    def get(self, blob: str, path: Path) -> None:
        """Fetch `<attempt>/<name>` of any attempt of this job to `path`; raises `NoSuchBlob` if it is not there."""
        ...


class MasterBlobs:
    """Blobs on the master's volume."""

    def __init__(self, client: AttemptClient) -> None:
        self._client = client

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Upload to the master, which checks, syncs and renames."""
        self._client.put_blob(name, path, sha256)

    def get(self, blob: str, path: Path) -> None:
        """Download from the master."""
        self._client.get_blob(blob, path)


class SharedBlobs:
    """Blobs below an fsspec URL that every node reaches."""

    def __init__(self, url: str, job: str, attempt: int) -> None:
        self._files, root = fsspec.url_to_fs(url)
        self._job = f"{root.rstrip('/')}/{job}"
        self._attempt = attempt
        if isinstance(self._files, LocalFileSystem):
            make_job_folder(Path(self._job))

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Write beside the name and move into place. (The manifest's checksum is checked by whoever reads it back.)

        On a file system the bytes are durable before the name and the name before the return, so that no manifest names
        a file that a power failure emptied. Object stores are durable by themselves. Raises `BlobsUnavailable` when the
        store fails.
        """
        try:
            self._put(name, path)
        except OSError as error:
            raise BlobsUnavailable(f"the blob store (ROLECALL_BLOB_URL) did not store {name}: {error}") from error

    def _put(self, name: str, path: Path) -> None:
        final = f"{self._job}/{self._attempt}/{name}"
        partial = f"{final}.{uuid.uuid4().hex}.partial"
        self._files.makedirs(final.rsplit("/", 1)[0], exist_ok=True)
        self._files.put_file(str(path), partial)
        if not isinstance(self._files, LocalFileSystem):
            self._files.mv(partial, final)
            return
        sync(Path(partial))
        self._files.mv(partial, final)
        for folder in Path(final).parents:  # also those that were just made
            sync(folder)
            if folder == Path(self._job):
                break

    def get(self, blob: str, path: Path) -> None:
        """Copy to a local file."""
        try:
            self._files.get_file(f"{self._job}/{blob}", str(path))
        except FileNotFoundError as error:
            raise NoSuchBlob(f"the blob store has no {self._job}/{blob}") from error


def make_job_folder(folder: Path) -> None:
    """Make a job's folder in a store that is a file system, durably. Confined workers get at nothing above it."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        sync(folder.parent)


def sha256_of(path: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Make a written file, or the names in a folder, outlive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
