"""Jobs as runs of an MLflow tracking server."""

import logging
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rolecall.spec.api import Checkpoint, Series
from rolecall.spec.errors import MissingPackage, TrackerError
from rolecall.spec.job import JobDocument
from rolecall.spec.redaction import redact_text
from rolecall.spec.visible import one_line
from rolecall.trackers.mlflow_values import (
    MAX_METRICS,
    MAX_NAMES,
    MAX_PARAMS,
    Measurement,
    measurements,
    params,
    status,
    tags,
)

_JOB = "rolecall.job"
"""The tag that identifies the run of a job."""
_DEFAULTS = {
    # By default, the library sends usage statistics to its authors, repeats failed requests for minutes, prints to
    # stdout, and logs in a format of its own.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",
}


def require_packages() -> None:
    """Raises `MissingPackage`."""
    _library()


class TrackedRuns:
    """The runs of one MLflow experiment. Writes each value of a job once, also after an earlier call."""

    def __init__(self, tracking_uri: str, experiment: str) -> None:
        """Raises `MissingPackage`, and `TrackerError` if the tracking server refuses the experiment."""
        self._mlflow, self._entities = _library()
        self._written: dict[str, dict[str, tuple[int, int]]] = {}
        """The time and step of the newest value of each metric, by run."""
        self._runs: dict[str, str] = {}
        self.count = 0
        with self._errors(tracking_uri):
            self._client: Any = self._mlflow.MlflowClient(tracking_uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment: str = found.experiment_id if found else self._client.create_experiment(experiment)
        self._uri = tracking_uri

    def write(self, job: JobDocument, series: Sequence[Series], checkpoints: Sequence[Checkpoint]) -> None:
        """Write the values that are newer than those of the job's run, and its current state. Raises `TrackerError`."""
        with self._errors(self._uri):
            run = self._find(job)
            self._runs[job.id] = run.info.run_id
            self._write_texts(run, job, checkpoints)
            self._write_measurements(run, measurements(job, series))
            if job.ended_at is not None and job.state.ended:
                self._client.set_terminated(run.info.run_id, status(job.state), round(job.ended_at.timestamp() * 1000))
            else:
                self._client.update_run(run.info.run_id, status=status(job.state))

    def forget(self, job: str) -> None:
        """Forget what was written of a job."""
        self._written.pop(self._runs.pop(job, ""), None)

    def close(self) -> None:
        """Nothing is open between calls."""

    def _find(self, job: JobDocument) -> Any:
        """The run of the job, which is created if there is none."""
        found = self._client.search_runs([self._experiment], f"tags.`{_JOB}` = '{job.id}'", max_results=1)
        if found:
            return found[0]
        start = round((job.started_at or job.created_at).timestamp() * 1000)
        identity = {_JOB: job.id, "mlflow.user": job.owner}
        return self._client.create_run(self._experiment, start, identity, run_name=job.name or job.id)

    def _write_texts(self, run: Any, job: JobDocument, checkpoints: Sequence[Checkpoint]) -> None:
        # MLflow refuses to change a parameter.
        missing = {name: value for name, value in params(job).items() if name not in run.data.params}
        new = {name: value for name, value in tags(job, checkpoints).items() if run.data.tags.get(name) != value}
        entries = [self._entities.Param(*one) for one in missing.items()]
        for start in range(0, len(entries), MAX_PARAMS):
            self._client.log_batch(run.info.run_id, params=entries[start : start + MAX_PARAMS])
        marks = [self._entities.RunTag(*one) for one in new.items()]
        for start in range(0, len(marks), MAX_PARAMS):
            self._client.log_batch(run.info.run_id, tags=marks[start : start + MAX_PARAMS])

    def _write_measurements(self, found: Any, values: list[Measurement]) -> None:
        """Write the values that are newer than those of the same metric in the run."""
        run = found.info.run_id
        written = self._written.setdefault(run, {})
        for name in {value.name for value in values} - written.keys():
            if len(written) >= MAX_NAMES:
                break
            history = self._client.get_metric_history(run, name) if name in found.data.metrics else ()
            written[name] = max(((point.timestamp, point.step) for point in history), default=(-1, -1))
        new = [one for one in values if one.name in written and (one.at_ms, one.step) > written[one.name]]
        for start in range(0, len(new), MAX_METRICS):
            batch = new[start : start + MAX_METRICS]
            metrics = [self._entities.Metric(one.name, one.value, one.at_ms, one.step) for one in batch]
            self._client.log_batch(run, metrics=metrics)
            for one in batch:
                written[one.name] = max(written[one.name], (one.at_ms, one.step))
            self.count += len(batch)

    @contextmanager
    def _errors(self, uri: str) -> Generator[None]:
        place = redact_text(uri)
        try:
            yield
        except self._mlflow.MlflowException as error:
            said = one_line(redact_text(str(error)))
            raise TrackerError(f"the MLflow server {place} failed: {said}", error.get_http_status_code()) from None
        except ImportError as error:
            raise MissingPackage(f"MLflow needs the package {error.name} for {place}; install it") from None
        except Exception as error:  # of the driver of a database, to which MLflow connects itself
            if uri.startswith(("http://", "https://")):
                raise
            said = one_line(redact_text(str(error).partition("\n")[0]))
            raise TrackerError(f"the MLflow database {place} failed: {said}") from None


def _library() -> tuple[Any, Any]:
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # It logs each step that creates or updates a database.
    try:
        return import_module("mlflow"), import_module("mlflow.entities")
    except ImportError:
        raise MissingPackage(
            "MLflow needs the package mlflow-skinny; install it: pip install 'rolecall[mlflow]'"
        ) from None
