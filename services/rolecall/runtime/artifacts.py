"""Files that a job leaves to its user."""

from pathlib import Path

from rolecall.runtime.blobs import Blobs, sha256_of
from rolecall.runtime.master_client import MasterClient
from rolecall.spec.wire import ArtifactNotice


class Artifacts:
    """`GET /jobs/{id}/artifacts/{name}` serves what is put here."""

    def __init__(self, blobs: Blobs, client: MasterClient, attempt: int) -> None:
        self._blobs = blobs
        self._client = client
        self._attempt = attempt

    @property
    def blobs(self) -> Blobs:
        """Where they lie. What else an attempt puts there is deleted when it has ended."""
        return self._blobs

    def put(self, name: str, path: Path) -> None:
        """Store the file at `path` as the job's artifact `name`; a later attempt's replaces it."""
        digest = sha256_of(path)
        self._blobs.put(name, path, digest)
        blob = f"{self._attempt}/{name}"
        self._client.record_artifact(ArtifactNotice(name=name, blob=blob, size=path.stat().st_size, sha256=digest))
