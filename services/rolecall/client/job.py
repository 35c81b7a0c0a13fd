"""One job of a master: submit it, wait for it, follow it, and read its results."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from rolecall.client.chart import Picture
from rolecall.client.client import Client
from rolecall.client.errors import ConfigurationError, Unreachable
from rolecall.client.patience import PAUSE_S, Patience
from rolecall.client.plot import curves, metric_names, table
from rolecall.spec.api import Artifact, Checkpoint, Event
from rolecall.spec.job import JobDocument, JobRequest, JobUpdate

_PLOTTED = 500
"""The approximate number of points of a curve."""


class Job:
    """A job of `client`'s master. Calls are retried for two minutes while the master is unavailable."""

    def __init__(
        self,
        client: Client,
        id: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.id = id
        self._clock = clock
        self._sleep = sleep
        self._patience = Patience(clock=clock, sleep=sleep)

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    @classmethod
    def submit(cls, client: Client, request: JobRequest | Mapping[str, Any], key: str | None = None) -> Self:
        """Submit a job. A repeated request with the same `key` returns the same job.

        Raises `Refused`, which lists the invalid fields.
        """
        return cls(client, client.submit(request, key).id)

    def document(self) -> JobDocument:
        """The current state, progress and result of the job."""
        return self._patience.call(lambda: self.client.job(self.id))

    def wait(self, timeout_s: float | None = None) -> JobDocument:
        """The document of the ended job. Raises `TimeoutError` if it has not ended after `timeout_s` seconds."""
        end = None if timeout_s is None else self._clock() + timeout_s
        while not (document := self.document()).state.ended:
            if end is not None and self._clock() > end:
                raise TimeoutError(f"job {self.id} is {document.state} after {timeout_s:g} s")
            self._sleep(PAUSE_S)
        return document

    def events(self) -> list[Event]:
        """The job's events so far, oldest first."""
        return self._patience.call(lambda: self.client.events(self.id))

    def follow(self) -> Iterator[Event]:
        """The events of the job as they happen, until it ends."""
        last = 0
        while True:
            try:
                for event in self.client.follow_events(self.id, last):
                    self._patience.reset()
                    last = event.id
                    yield event
            except Unreachable as error:
                self._patience.pause(error)
            else:
                return

    def logs(self, **filters: Any) -> str:
        """The output of the workers of the newest attempt. Each line starts with `[role-number]`.

        The filters are parameters of `GET /jobs/{id}/logs`, such as `role`, `text` and `tail`.
        """
        return b"".join(self.client.log(self.id, filters)).decode(errors="replace")

    def metrics(self, points: int = 2000) -> list[dict[str, Any]]:
        """The values that the workers reported: a row for each worker and step, for example for `pandas.DataFrame`.

        Each row has `attempt`, `rank`, `role`, `role_rank`, `step` and all values, with None for those that the worker
        did not report at the step. A series with more than about `points` rows is thinned.
        """
        rows = table(self._patience.call(lambda: self.client.metrics(self.id, points)))
        # Many readers of tables take the columns from the first rows.
        names = dict.fromkeys(name for row in rows for name in row)
        return [{name: row.get(name) for name in names} for row in rows]

    def plot(self, metric: str = "loss") -> Picture:
        """A chart of a metric over the steps, with a line for each worker that reported it. Notebooks show it.

        Raises `ConfigurationError` if no worker has reported the metric.
        """
        rows = table(self._patience.call(lambda: self.client.metrics(self.id, _PLOTTED)))
        if metric not in (known := metric_names(rows)):
            raise ConfigurationError(
                f"job {self.id} has reported no {metric!r} yet; there are: {', '.join(known) or 'none'}"
            )
        return Picture(curves(rows, metric, f"{metric} of {self.id}"))

    def cancel(self) -> JobDocument:
        """Stop the job for good."""
        return self.client.act(self.id, "cancel")

    def pause(self) -> JobDocument:
        """Stop the job after a checkpoint."""
        return self.client.act(self.id, "pause")

    def resume(self) -> JobDocument:
        """Queue the paused job again, or the job that is still being paused."""
        return self.client.act(self.id, "resume")

    def retry(self) -> JobDocument:
        """Queue the failed or cancelled job again."""
        return self.client.act(self.id, "retry")

    def update(self, changes: JobUpdate | Mapping[str, Any]) -> JobDocument:
        """Change name, priority or labels. Null resets a field, or removes a label."""
        return self.client.update(self.id, changes)

    def delete(self, *, force: bool = False) -> None:
        """Delete the ended job with all its data; with `force`, cancel it first."""
        self.client.delete(self.id, force=force)

    def artifacts(self) -> list[Artifact]:
        """The files that the job has left."""
        return self._patience.call(lambda: self.client.artifacts(self.id))

    def download(self, name: str, to: Path | str | None = None) -> Path:
        """Write an artifact to `to`, by default to its own name in the current folder."""
        path = Path(to) if to is not None else Path(Path(name).name)
        self.client.download(self.id, name, path)
        return path

    def checkpoints(self) -> list[Checkpoint]:
        """The recorded checkpoints, newest first."""
        return self._patience.call(lambda: self.client.checkpoints(self.id))

    def download_checkpoint(self, step: int, to: Path | str) -> Path:
        """Write a checkpoint to `to`: a ZIP archive with its manifest and its parts."""
        self.client.download_checkpoint(self.id, step, Path(to))
        return Path(to)
