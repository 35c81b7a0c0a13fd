"""Files that a job leaves to its user."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rolecall.edge.logs import about
from rolecall.runtime.blobs import JobBlobs, sha256_of
from rolecall.runtime.records import Records
from rolecall.spec.errors import BlobsUnavailable
from rolecall.spec.wire import ArtifactNotice

_LOG = logging.getLogger(__name__)
_PAUSE_S = 5.0
_FOR_GOOD = (PermissionError, FileNotFoundError)
"""What a store answers that is not set up for this job; waiting would hold the gang's slots for nothing."""


class Artifacts:
    """`GET /jobs/{id}/artifacts/{name}` serves what is put here."""

    def __init__(
        self, blobs: JobBlobs, records: Records, attempt: int, *, on_wait: Callable[[str], None] | None = None
    ) -> None:
        self._blobs = blobs
        self._records = records
        self._attempt = attempt
        self._on_wait = on_wait or partial(_LOG.warning, extra=about("artifact_waits"))

    @property
    def blobs(self) -> JobBlobs:
        """Where they lie. What else an attempt puts there is deleted when it has ended."""
        return self._blobs

    def put(self, name: str, path: Path) -> None:
        """Store the file at `path` as the job's artifact `name`; a later attempt's replaces it.

        Waits, and reports that as an event, for as long as the blob store or the master is unavailable: unlike a
        checkpoint, an artifact can't be left out. Cancelling the job and its deadline end the wait.
        """
        digest = sha256_of(path)
        notice = ArtifactNotice(name=name, blob=f"{self._attempt}/{name}", size=path.stat().st_size, sha256=digest)
        self._insist(name, lambda: self._blobs.put(name, path, digest))
        self._insist(name, lambda: self._records.record_artifact(notice))

    def _insist(self, name: str, call: Callable[[], None]) -> None:
        waits = False
        while True:
            try:
                return call()
            except BlobsUnavailable as error:
                if isinstance(error.__cause__, _FOR_GOOD):
                    raise
                if not waits:
                    self._on_wait(f"the artifact {name} can't be stored yet: {error}")
                waits = True
                time.sleep(_PAUSE_S)
