"""A worker's calls to the master: blobs, checkpoints, artifacts."""

import logging
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import httpx

from rolecall.edge.tls import client_options, request_options
from rolecall.logs import about
from rolecall.retry import delays_s
from rolecall.spec.errors import BlobsUnavailable, CheckpointError, NoSuchBlob, QuotaExceeded, StaleAttempt
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.trust import Trust
from rolecall.spec.wire import ArtifactNotice

_LOG = logging.getLogger(__name__)
_GIVE_UP_S = 300.0
_MAX_PAUSE_S = 5.0
_CHUNK_BYTES = 1 << 20
_TEMPORARY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}
"""Client errors that a slow network or a proxy can cause as well."""
_REFUSALS = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
# The master answers an upload when it is completely on disk.
_UPLOAD = httpx.Timeout(60.0, read=600.0)


class AttemptClient:
    """A client with the attempt's token. It retries while the master is unavailable.

    It raises `BlobsUnavailable` after five minutes. Until the master is back, later calls are not retried. The token
    is valid as long as the master's database exists, so after a first success, only a proxy can cause a refusal.
    """

    def __init__(
        self,
        url: str,
        token: str,
        job: str,
        attempt: int,
        trust: Trust | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._job = f"/internal/jobs/{job}"
        self._attempt = f"{self._job}/attempts/{attempt}"
        self._options = request_options(trust)
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60.0, **client_options(url, trust)
        )
        self._unavailable_since: float | None = None
        self._was_accepted = False

    def put(self, name: str, path: Path, sha256: str) -> None:
        """Upload one file; the master checks it against `sha256`, syncs it and renames it."""
        self._retry(
            lambda: self._http.put(
                f"{self._attempt}/blobs/{name}",
                content=_chunks(path),
                headers={"X-Content-SHA256": sha256},
                timeout=_UPLOAD,
                **self._options,
            )
        )

    def get(self, blob: str, path: Path) -> None:
        """Download one file of this job, whichever attempt wrote it; raises `NoSuchBlob` if it is not there."""

        def download() -> httpx.Response:
            with self._http.stream("GET", f"{self._job}/blobs/{blob}", **self._options) as response:
                if response.is_error:
                    response.read()
                    return response
                with path.open("wb") as file:
                    for chunk in response.iter_bytes(_CHUNK_BYTES):
                        file.write(chunk)
                return response

        self._retry(download)

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Close a checkpoint; raises `StaleAttempt` if this attempt is no longer the job's current one."""
        self._post("checkpoints", manifest.model_dump_json())

    def record_artifact(self, notice: ArtifactNotice) -> None:
        """Make an uploaded blob one of the job's artifacts."""
        self._post("artifacts", notice.model_dump_json())

    def _post(self, noun: str, body: str) -> None:
        headers = {"Content-Type": "application/json"}
        path = f"{self._attempt}/{noun}"
        self._retry(lambda: self._http.post(path, content=body, headers=headers, **self._options))

    def _retry(self, call: Callable[[], httpx.Response]) -> None:
        """Call until the master answers: it may restart, and a worker that fails would cost an attempt."""
        delays = delays_s(most=_MAX_PAUSE_S, jitter=0)
        while (problem := self._error_of(call)) is not None:
            # Measured from the first failure: a large file may take longer than that to transfer.
            self._unavailable_since = self._unavailable_since or self._clock()
            if (failing_s := self._clock() - self._unavailable_since) > _GIVE_UP_S:
                raise BlobsUnavailable(
                    f"the master could neither store nor send files for {failing_s:.0f} s: {problem}"
                )
            pause = next(delays)
            text = "the master is unavailable (%s); retrying in %.1f s"
            _LOG.warning(text, problem, pause, extra=about("master_unavailable"))
            self._sleep(pause)
        self._unavailable_since, self._was_accepted = None, True

    def _error_of(self, call: Callable[[], httpx.Response]) -> str | None:
        """The text of an error that may be temporary, None for success; raises if a retry can't help."""
        try:
            response = call()
        except httpx.TransportError as error:
            return f"{type(error).__name__}: {error}"
        status, path = response.status_code, response.request.url.path
        if status == HTTPStatus.CONFLICT:
            raise StaleAttempt(response.text)
        if status == HTTPStatus.NOT_FOUND and response.request.method == "GET":
            raise NoSuchBlob(f"the master has no {path}: {response.text}")
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            raise QuotaExceeded(response.text)
        if status in _REFUSALS and not self._was_accepted:
            raise CheckpointError(
                f"the token of this attempt is not accepted for {path} ({status} {response.text}): "
                f"is a proxy between this node and the master at {self._http.base_url.host}?"
            )
        if response.is_client_error and status not in _TEMPORARY | _REFUSALS:
            raise CheckpointError(f"the master refused {path}: {response.text}")
        return f"{status} {response.text}" if response.is_error else None


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
