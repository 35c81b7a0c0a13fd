"""A worker's few calls to the master: blobs, checkpoints, artifacts."""

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from rolecall.spec.errors import CheckpointError, NoSuchBlob, QuotaExceeded, StaleAttempt
from rolecall.spec.plan import CheckpointManifest
from rolecall.spec.wire import ArtifactNotice

_log = logging.getLogger(__name__)
_GIVE_UP_S = 300.0
_LONGEST_PAUSE_S = 5.0
_PIECE = 1 << 20
# The master answers an upload when all of it is on its disk.
_UPLOAD = httpx.Timeout(60.0, read=600.0)


class MasterClient:
    """Bears the attempt's own token; outlives a restart of the master by trying again for five minutes."""

    def __init__(self, url: str, token: str, job: str, attempt: int) -> None:
        self._job = f"/internal/jobs/{job}"
        self._attempt = f"{self._job}/attempts/{attempt}"
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60.0, trust_env=False
        )

    def put_blob(self, name: str, path: Path, sha256: str) -> None:
        """Upload one file; the master checks it against `sha256`."""
        self._persist(
            lambda: self._http.put(
                f"{self._attempt}/blobs/{name}",
                content=_pieces(path),
                headers={"X-Content-SHA256": sha256},
                timeout=_UPLOAD,
            )
        )

    def get_blob(self, blob: str, path: Path) -> None:
        """Download one file of this job, whichever attempt wrote it; raises `NoSuchBlob` if it is not there."""

        def download() -> httpx.Response:
            with self._http.stream("GET", f"{self._job}/blobs/{blob}") as response:
                if response.is_error:
                    response.read()
                    return response
                with path.open("wb") as file:
                    for piece in response.iter_bytes(_PIECE):
                        file.write(piece)
                return response

        self._persist(download)

    def record_checkpoint(self, manifest: CheckpointManifest) -> None:
        """Close a checkpoint; raises `StaleAttempt` if this attempt is no longer the job's current one."""
        self._post("checkpoints", manifest.model_dump_json())

    def record_artifact(self, notice: ArtifactNotice) -> None:
        """Make an uploaded blob one of the job's artifacts."""
        self._post("artifacts", notice.model_dump_json())

    def _post(self, noun: str, body: str) -> None:
        headers = {"Content-Type": "application/json"}
        self._persist(lambda: self._http.post(f"{self._attempt}/{noun}", content=body, headers=headers))

    def _persist(self, call: Callable[[], httpx.Response]) -> None:
        """Call until the master answers: it may be restarting, and a worker that gave up would cost an attempt."""
        give_up: float | None = None
        pause = 0.1
        while True:
            trouble = _try(call)
            if trouble is None:
                return
            # From the first failure on: a large file may well take longer than that to go over.
            give_up = give_up or time.monotonic() + _GIVE_UP_S
            if time.monotonic() > give_up:
                raise CheckpointError(f"the master did not take or give a blob for {_GIVE_UP_S:.0f} s: {trouble}")
            _log.warning("the master is not to be had (%s); trying again in %.1f s", trouble, pause)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def _try(call: Callable[[], httpx.Response]) -> str | None:
    """None when it worked, a sentence when it may work later; raises when it never will."""
    try:
        response = call()
    except httpx.TransportError as error:
        return f"{type(error).__name__}: {error}"
    if response.status_code == httpx.codes.CONFLICT:
        raise StaleAttempt(response.text)
    if response.status_code == httpx.codes.NOT_FOUND and response.request.method == "GET":
        raise NoSuchBlob(f"the master has no {response.request.url.path}: {response.text}")
    if response.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE:
        raise QuotaExceeded(response.text)
    if response.is_client_error:
        raise CheckpointError(f"the master refused {response.request.url.path}: {response.text}")
    return f"{response.status_code} {response.text}" if response.is_error else None


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
