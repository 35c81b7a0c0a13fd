"""The calls of a master's HTTP API, as methods with typed results."""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource, ServerSentEvent
from pydantic import AliasPath, BaseModel, Field

from rolecall.client.errors import ConfigurationError, Unreachable
from rolecall.client.transport import Transport, segment
from rolecall.spec.access import AuditEntry, TokenDocument, TokenSecret
from rolecall.spec.api import (
    Artifact,
    Checkpoint,
    Event,
    Health,
    PruneSummary,
    Readiness,
    Series,
    WorkloadDocument,
)
from rolecall.spec.finding import Finding
from rolecall.spec.inspection import ProfileDocument, StacksDocument
from rolecall.spec.job import JobDocument, JobOverview, JobPlan, JobRequest, JobUpdate
from rolecall.spec.node import NodeDocument

_PAGE = 200
_M = TypeVar("_M", bound=BaseModel)
_SILENCE_S = 60.0
"""The maximum silence of a stream. The master sends a comment several times in this time."""

_SEARCH_S = 600.0
"""The maximum silence while the master searches the logs of a large gang for a rare text."""


class _Description(BaseModel):
    version: str = Field(validation_alias=AliasPath("info", "version"))


class Client(Transport):
    """A client of one master, and a context manager. `raw` is the body of the last response, for `--json`.

    Every failure is a `ClientError`.
    """

    def submit(self, request: JobRequest | Mapping[str, Any] | bytes, key: str | None = None) -> JobDocument:
        """Submit a job, as bytes in the user's original form. The master validates it.

        A repeated request with the same `key` returns the same job.
        """
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        return self.call(JobDocument, "POST", "/jobs", content=_body(request), headers=headers)

    def plan(self, request: JobRequest | Mapping[str, Any] | bytes) -> JobPlan:
        """The nodes on which the workers of a job would run, or the reason why it would wait. Creates nothing."""
        headers = {"Content-Type": "application/json"}
        return self.call(JobPlan, "POST", "/jobs", params={"dry_run": True}, content=_body(request), headers=headers)

    def update(self, job: str, changes: JobUpdate | Mapping[str, Any]) -> JobDocument:
        """Change the name, priority or labels of a job (JSON Merge Patch)."""
        body = changes.model_dump(mode="json", exclude_unset=True) if isinstance(changes, JobUpdate) else dict(changes)
        return self._document(job, "PATCH", json=body)

    def job(self, job: str, *, timeout_s: float | None = None) -> JobDocument:
        """The job's document. Raises `Unreachable` if the master is silent for `timeout_s` seconds, by default 30."""
        within: dict[str, Any] = {} if timeout_s is None else {"timeout": timeout_s}
        return self._document(job, "GET", **within)

    def act(self, job: str, action: str) -> JobDocument:
        """Request the action: `cancel`, `pause`, `resume` or `retry`."""
        return self._document(job, "POST", f"/{action}")

    def delete(self, job: str, *, force: bool) -> None:
        """Delete a job with all its data; with `force`, cancel it first."""
        self.send("DELETE", f"/jobs/{segment(job)}", params={"force": force})

    def prune(self, ended_before: datetime, state: str | None, *, dry_run: bool) -> PruneSummary:
        """Delete the jobs that ended before a given time, or only list them."""
        body = {"ended_before": ended_before.isoformat(), "state": state, "dry_run": dry_run}
        return self.call(PruneSummary, "POST", "/jobs/prune", json=body)

    def jobs(self, limit: int = 50, **conditions: Any) -> list[JobOverview]:
        """Up to `limit` jobs that meet all `conditions`, newest first, from as many pages as necessary.

        The conditions are the parameters of `GET /jobs`, such as `state`, `workload`, `name`, `owner` and `label`.
        None stands for no condition, and a list for several values.
        """
        return self._paged(JobOverview, "/jobs", "jobs", limit, conditions)

    def _paged(self, kind: type[_M], path: str, key: str, limit: int, conditions: dict[str, Any]) -> list[_M]:
        """Up to `limit` items of a list, from as many pages as necessary."""
        query = {name: value for name, value in conditions.items() if value is not None}
        found, raw = list[_M](), list[Any]()
        while True:
            found += self.items(kind, path, key, params=query | {"limit": min(_PAGE, limit - len(found))})
            raw += self.raw[key]
            query["cursor"] = self.raw.get("next_cursor")
            if query["cursor"] is None or len(found) >= limit:
                self.raw |= {key: raw}
                return found

    def events(self, job: str, after: int = 0) -> list[Event]:
        """The events of the job with ids above `after`."""
        return self.items(Event, f"/jobs/{segment(job)}/events", "events", params={"after": after})

    def follow_events(self, job: str, after: int = 0) -> Iterator[Event]:
        """The events of the job as they happen, until it ends. Raises `Unreachable` if the stream breaks off."""
        path, headers = f"/jobs/{segment(job)}/events", {"Last-Event-ID": str(after)}
        with self.stream(path, {"follow": "true"}, _SILENCE_S, headers) as answer:
            for event in _sent(answer):
                if event.event == "end":
                    return
                yield Event.model_validate_json(event.data, extra="ignore")
        raise Unreachable(f"{self.url} ended the stream of events before the job ended")

    def metrics(
        self, job: str, points: int = 2000, attempt: int | None = None, *, lowest_rank: bool = False
    ) -> list[Series]:
        """The values that each worker reported by step, thinned to about `points`.

        With `lowest_rank`, only of workers that reported a value which no lower rank of their attempt reported.
        """
        query = {"points": points} | ({} if attempt is None else {"attempt": attempt})
        query |= {"lowest_rank": True} if lowest_rank else {}
        return self.items(Series, f"/jobs/{segment(job)}/metrics", "series", params=query)

    def checkpoints(self, job: str) -> list[Checkpoint]:
        """The recorded checkpoints, newest first."""
        return self.items(Checkpoint, f"/jobs/{segment(job)}/checkpoints", "checkpoints")

    def nodes(self, *, timeout_s: float | None = None) -> list[NodeDocument]:
        """All nodes. Raises `Unreachable` if the master is silent for `timeout_s` seconds, by default 30."""
        within: dict[str, Any] = {} if timeout_s is None else {"timeout": timeout_s}
        return self.items(NodeDocument, "/nodes", "nodes", **within)

    def version(self) -> str:
        return self.call(_Description, "GET", "/openapi.json").version

    def healthz(self) -> Health:
        return self.call(Health, "GET", "/healthz")

    def readyz(self) -> Readiness:
        return self.call(Readiness, "GET", "/readyz")

    def findings(self) -> list[Finding]:
        return self.items(Finding, "/findings", "findings")

    def tokens(self) -> list[TokenDocument]:
        return self.items(TokenDocument, "/tokens", "tokens")

    def create_token(self, request: dict[str, Any]) -> TokenSecret:
        return self.call(TokenSecret, "POST", "/tokens", json=request)

    def change_token(self, name: str, changes: dict[str, Any]) -> TokenDocument:
        return self.call(TokenDocument, "PATCH", f"/tokens/{segment(name)}", json=changes)

    def rotate_token(self, name: str, overlap_s: float) -> TokenSecret:
        """Create a new secret. The current one stays valid for `overlap_s` seconds."""
        return self.call(TokenSecret, "POST", f"/tokens/{segment(name)}/rotate", json={"overlap_s": overlap_s})

    def revoke_token(self, name: str) -> None:
        self.send("DELETE", f"/tokens/{segment(name)}")

    def audit(self, limit: int = 100, since: datetime | None = None) -> list[AuditEntry]:
        """Up to `limit` entries of the audit log, newest first; with `since`, only those from this time on."""
        conditions = {"since": since.isoformat() if since else None}
        return self._paged(AuditEntry, "/audit", "entries", limit, conditions)

    def workloads(self) -> list[WorkloadDocument]:
        return self.items(WorkloadDocument, "/workloads", "workloads")

    def workload(self, name: str) -> WorkloadDocument:
        return self.call(WorkloadDocument, "GET", f"/workloads/{segment(name)}")

    def artifacts(self, job: str) -> list[Artifact]:
        return self.items(Artifact, f"/jobs/{segment(job)}/artifacts", "artifacts")

    def stacks(self, job: str) -> StacksDocument:
        """The calls that the job's running workers execute."""
        return self.call(StacksDocument, "POST", f"/jobs/{segment(job)}/stacks")

    def profile(self, job: str, request: dict[str, Any]) -> ProfileDocument:
        """Begin to profile running workers."""
        return self.call(ProfileDocument, "POST", f"/jobs/{segment(job)}/profile", json=request)

    def save_timeline(self, job: str, query: dict[str, Any], to: Path) -> None:
        """Write the phases of the workers' recent steps to `to`."""
        self._save(f"/jobs/{segment(job)}/timeline", to, query)

    def log(self, job: str, query: dict[str, Any]) -> Iterator[bytes]:
        """The chunks of the job's log."""
        silence_s = _SEARCH_S if query.get("text") else 30.0
        with self.stream(f"/jobs/{segment(job)}/logs", query, silence_s) as answer:
            yield from answer.iter_bytes()

    @contextmanager
    def log_events(self, job: str, query: dict[str, Any], last_id: str) -> Generator[Iterator[ServerSentEvent]]:
        """The new lines of the job's log, after the event `last_id` if there is one.

        The last event is named `end`. Without it, the stream broke off.
        """
        path, query = f"/jobs/{segment(job)}/logs", query | {"follow": "true"}
        headers = {"Last-Event-ID": last_id} if last_id else {}
        with self.stream(path, query, _SILENCE_S, headers) as answer:
            yield _sent(answer)

    def download(self, job: str, name: str, to: Path) -> None:
        """Write an artifact to `to`, which appears only when it is complete."""
        self._save(f"/jobs/{segment(job)}/artifacts/{segment(name)}", to)

    def download_checkpoint(self, job: str, step: int, to: Path) -> None:
        """Write a checkpoint to `to`: a ZIP archive with its manifest and its parts."""
        self._save(f"/jobs/{segment(job)}/checkpoints/{step}", to)

    def _document(self, job: str, method: str, path: str = "", **given: Any) -> JobDocument:
        """The job's document. Raises `Unreachable` if its id is another one, because callers name files after it."""
        found = self.call(JobDocument, method, f"/jobs/{segment(job)}{path}", **given)
        if found.id != job:
            raise Unreachable(
                f"{self.url} answers with the job {found.id!r} instead of {job!r}; is it a Rolecall master?"
            )
        return found

    def _save(self, path: str, to: Path, query: Mapping[str, Any] = MappingProxyType({})) -> None:
        partial = to.with_name(f".{to.name}.part")
        try:
            with self.stream(path, dict(query), 30.0) as answer, partial.open("wb") as file:
                for chunk in answer.iter_bytes():
                    file.write(chunk)
            partial.replace(to)
        except OSError as error:
            raise ConfigurationError(f"can't write {to}: {error.strerror}") from None
        finally:
            partial.unlink(missing_ok=True)


def _sent(answer: httpx.Response) -> Iterator[ServerSentEvent]:
    """The events of a stream. The library also returns one without data for a comment after an id."""
    return (event for event in EventSource(answer).iter_sse() if event.data)


def _body(request: JobRequest | Mapping[str, Any] | bytes) -> bytes:
    if isinstance(request, JobRequest):
        return request.model_dump_json(exclude_unset=True).encode()
    return request if isinstance(request, bytes) else json.dumps(dict(request)).encode()
