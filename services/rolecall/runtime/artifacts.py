"""The files that a job stores for its user."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rolecall.logs import about
from rolecall.runtime.blobs import JobBlobs, Records, sha256_of
from rolecall.spec.errors import BlobsUnavailable
from rolecall.spec.wire import ArtifactNotice

_LOG = logging.getLogger(__name__)
_PAUSE_S = 5.0
_PERMANENT = (PermissionError, FileNotFoundError)
"""Errors of a store that is not set up for this job. Retries would occupy the gang's slots in vain."""


class Artifacts:
    """Stores artifacts, which `GET /jobs/{id}/artifacts/{name}` serves."""

    def __init__(
        self, blobs: JobBlobs, records: Records, attempt: int, *, on_wait: Callable[[str], None] | None = None
    ) -> None:
        self._blobs = blobs
        self._records = records
        self._attempt = attempt
        self._on_wait = on_wait or partial(_LOG.warning, extra=about("artifact_waits"))

    @property
    def blobs(self) -> JobBlobs:
        """The blobs of the artifacts. Other blobs of an attempt are deleted after its end."""
        return self._blobs

    def put(self, name: str, path: Path) -> None:
        """Store the file at `path` as the job's artifact `name`; a later attempt replaces it.

        While the blob store or the master is unavailable, the call waits and reports an event: unlike a checkpoint, an
        artifact can't be skipped. The wait ends if the job is canceled or reaches its deadline.
        """
        digest = sha256_of(path)
        notice = ArtifactNotice(name=name, blob=f"{self._attempt}/{name}", size=path.stat().st_size, sha256=digest)
        self._retry(name, lambda: self._blobs.put(name, path, digest))
        self._retry(name, lambda: self._records.record_artifact(notice))

    def _retry(self, name: str, call: Callable[[], None]) -> None:
        waits = False
        while True:
            try:
                return call()
            except BlobsUnavailable as error:
                if isinstance(error.__cause__, _PERMANENT):
                    raise
                if not waits:
                    self._on_wait(f"the artifact {name} can't be stored yet: {error}")
                waits = True
                time.sleep(_PAUSE_S)
