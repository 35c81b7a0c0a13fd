"""A client of the master's HTTP API for the commands. Every failure is a `CommandError` that says what to do."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import EventSource, ServerSentEvent
from pydantic import BaseModel, ValidationError

from rolecall import __version__
from rolecall.cli.connection import Connection
from rolecall.cli.exits import CommandError, Exit
from rolecall.edge.tls import client_options, explain, request_options
from rolecall.spec.access import AuditEntry, TokenDocument, TokenSecret
from rolecall.spec.api import Artifact, Event, Health, PruneSummary, Readiness, WorkloadDocument
from rolecall.spec.errors import SettingsError
from rolecall.spec.finding import Finding
from rolecall.spec.job import JobDocument, JobOverview
from rolecall.spec.node import NodeDocument

_M = TypeVar("_M", bound=BaseModel)
_SILENCE_S = 60.0
"""The maximum silence of a stream. The master sends a comment several times in this time."""
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)


class _Info(BaseModel):
    version: str


class _Description(BaseModel):
    info: _Info


class Client:
    """A client of one master, and a context manager. `raw` is the body of the last response, for `--json`."""

    def __init__(self, connection: Connection) -> None:
        self.url = connection.url
        self.raw: Any = None
        self._trust = connection.trust
        headers = {"Authorization": f"Bearer {connection.token}"}
        try:
            options = client_options(connection.trust)
        except SettingsError as error:
            raise CommandError(Exit.USAGE, str(error)) from None
        self._http = httpx.Client(base_url=connection.url, headers=headers, timeout=_TIMEOUT, **options)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def submit(self, body: bytes, key: str | None = None) -> JobDocument:
        """Submit the job in the user's original bytes, so that the master validates them.

        A repeated request with the same `key` returns the same job.
        """
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        return self._call(JobDocument, "POST", "/jobs", content=body, headers=headers)

    def job(self, job: str) -> JobDocument:
        return self._call(JobDocument, "GET", f"/jobs/{_segment(job)}")

    def act(self, job: str, action: str) -> JobDocument:
        """Request the action: `cancel`, `pause`, `resume` or `retry`."""
        return self._call(JobDocument, "POST", f"/jobs/{_segment(job)}/{action}")

    def delete(self, job: str, *, force: bool) -> None:
        """Delete a job with all its data; with `force`, cancel it first."""
        self._send("DELETE", f"/jobs/{_segment(job)}", params={"force": force})

    def prune(self, ended_before: datetime, state: str | None, *, dry_run: bool) -> PruneSummary:
        """Delete the jobs that ended before a given time, or only list them."""
        body = {"ended_before": ended_before.isoformat(), "state": state, "dry_run": dry_run}
        return self._call(PruneSummary, "POST", "/jobs/prune", json=body)

    def jobs(self, state: str | None, limit: int, owner: str | None = None) -> list[JobOverview]:
        """Up to `limit` jobs, newest first, from as many pages as necessary."""
        query: dict[str, Any] = ({"state": state} if state else {}) | ({"owner": owner} if owner else {})
        found, raw = list[JobOverview](), list[Any]()
        while True:
            found += self._list(JobOverview, "/jobs", "jobs", params=query | {"limit": limit - len(found)})
            raw += self.raw["jobs"]
            query["cursor"] = self.raw.get("next_cursor")
            if query["cursor"] is None or len(found) >= limit:
                self.raw |= {"jobs": raw}
                return found

    def events(self, job: str, after: int = 0) -> list[Event]:
        """The events of the job with ids above `after`."""
        return self._list(Event, f"/jobs/{_segment(job)}/events", "events", params={"after": after})

    def nodes(self) -> list[NodeDocument]:
        return self._list(NodeDocument, "/nodes", "nodes")

    def version(self) -> str:
        return self._call(_Description, "GET", "/openapi.json").info.version

    def healthz(self) -> Health:
        return self._call(Health, "GET", "/healthz")

    def readyz(self) -> Readiness:
        return self._call(Readiness, "GET", "/readyz")

    def findings(self) -> list[Finding]:
        return self._list(Finding, "/findings", "findings")

    def tokens(self) -> list[TokenDocument]:
        return self._list(TokenDocument, "/tokens", "tokens")

    def create_token(self, request: dict[str, Any]) -> TokenSecret:
        return self._call(TokenSecret, "POST", "/tokens", json=request)

    def change_token(self, name: str, changes: dict[str, Any]) -> TokenDocument:
        return self._call(TokenDocument, "PATCH", f"/tokens/{_segment(name)}", json=changes)

    def rotate_token(self, name: str, overlap_s: float) -> TokenSecret:
        """Create a new secret. The current one stays valid for `overlap_s` seconds."""
        return self._call(TokenSecret, "POST", f"/tokens/{_segment(name)}/rotate", json={"overlap_s": overlap_s})

    def revoke_token(self, name: str) -> None:
        self._send("DELETE", f"/tokens/{_segment(name)}")

    def audit(self, limit: int, after: int | None) -> list[AuditEntry]:
        """The audit log: the newest entries, or those with ids above `after`."""
        query = {"limit": limit} | ({} if after is None else {"after": after})
        return self._list(AuditEntry, "/audit", "entries", params=query)

    def workloads(self) -> list[WorkloadDocument]:
        return self._list(WorkloadDocument, "/workloads", "workloads")

    def workload(self, name: str) -> WorkloadDocument:
        return self._call(WorkloadDocument, "GET", f"/workloads/{_segment(name)}")

    def artifacts(self, job: str) -> list[Artifact]:
        return self._list(Artifact, f"/jobs/{_segment(job)}/artifacts", "artifacts")

    def log(self, job: str, query: dict[str, Any]) -> Iterator[bytes]:
        """The chunks of the job's log."""
        with self._stream(f"/jobs/{_segment(job)}/logs", query, 30.0) as answer:
            yield from answer.iter_bytes()

    @contextmanager
    def log_events(self, job: str, query: dict[str, Any], last_id: str) -> Generator[Iterator[ServerSentEvent]]:
        """The new lines of the job's log, after the event `last_id` if there is one.

        The last event is named `end`. Without it, the stream broke off.
        """
        path, query = f"/jobs/{_segment(job)}/logs", query | {"follow": "true"}
        headers = {"Last-Event-ID": last_id} if last_id else {}
        with self._stream(path, query, _SILENCE_S, headers) as answer:
            yield EventSource(answer).iter_sse()

    def download(self, job: str, name: str, to: Path) -> None:
        """Write an artifact to `to`, which appears only when it is complete."""
        partial = to.with_name(f".{to.name}.part")
        path = f"/jobs/{_segment(job)}/artifacts/{_segment(name)}"
        try:
            with self._stream(path, {}, 30.0) as answer, partial.open("wb") as file:
                for chunk in answer.iter_bytes():
                    file.write(chunk)
            partial.replace(to)
        except OSError as error:
            raise CommandError(Exit.USAGE, f"can't write {to}: {error.strerror}") from None
        finally:
            partial.unlink(missing_ok=True)

    def _call(self, kind: type[_M], method: str, path: str, **given: Any) -> _M:
        answer = self._send(method, path, **given)
        with self._understood():
            return kind.model_validate(answer, extra="ignore")

    def _list(self, kind: type[_M], path: str, key: str, **given: Any) -> list[_M]:
        answer = self._send("GET", path, **given)
        with self._understood():
            return [kind.model_validate(one, extra="ignore") for one in answer[key]]

    @contextmanager
    def _understood(self) -> Generator[None]:
        """Turn missing or invalid fields into a `CommandError`. Unknown fields of a newer master are ignored."""
        try:
            yield
        except (ValidationError, LookupError, TypeError) as error:
            why = f"{error.error_count()} of its fields are not" if isinstance(error, ValidationError) else "it is not"
            raise CommandError(
                Exit.UNREACHABLE,
                f"{self.url} answers what Rolecall {__version__} can't read: {why} as they should be; "
                "is it a Rolecall master, and of this version?",
            ) from None

    def _send(self, method: str, path: str, **given: Any) -> Any:
        with self._explained():
            answer = self._http.request(method, path, **given, **request_options(self._trust))
        _check(answer, self.url)
        try:
            self.raw = answer.json() if answer.content else None
        except ValueError:
            raise CommandError(Exit.UNREACHABLE, f"{self.url} answers, but is no Rolecall master") from None
        return self.raw

    @contextmanager
    def _stream(
        self, path: str, query: dict[str, Any], read_s: float, headers: dict[str, str] | None = None
    ) -> Generator[httpx.Response]:
        timeout = httpx.Timeout(30.0, connect=5.0, read=read_s)
        options = request_options(self._trust)
        call = self._http.stream("GET", path, params=query, headers=headers, timeout=timeout, **options)
        with self._explained(), call as answer:
            if answer.is_error:
                answer.read()
            _check(answer, self.url)
            yield answer

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except httpx.InvalidURL as error:
            raise CommandError(Exit.USAGE, f"{self.url} is not a URL: {error}") from None
        except httpx.UnsupportedProtocol:
            raise CommandError(Exit.USAGE, f"{self.url} is not an HTTP URL; write http://HOST:PORT") from None
        except httpx.TransportError as error:
            if why := explain(error, self.url, self._trust):
                raise CommandError(Exit.UNREACHABLE, f"no master answers at {self.url}: {why}") from None
            raise CommandError(
                Exit.UNREACHABLE,
                f"no master answers at {self.url} ({error or type(error).__name__}); "
                "start one with `rolecall local`, or name another with --url or ROLECALL_URL",
            ) from None


_EXITS = {
    401: Exit.UNAUTHORIZED,
    403: Exit.UNAUTHORIZED,
    404: Exit.NOT_FOUND,
    400: Exit.REFUSED,
    409: Exit.REFUSED,
    413: Exit.REFUSED,
    422: Exit.REFUSED,
    429: Exit.REFUSED,
}


def _check(answer: httpx.Response, url: str) -> None:
    if answer.is_success:
        return
    code = _EXITS.get(answer.status_code, Exit.UNREACHABLE)
    if code is Exit.UNAUTHORIZED:
        refusal = f"{url} does not accept the token: set ROLECALL_TOKEN or pass --token"
        raise CommandError(code, refusal if answer.status_code == 401 else _explain(answer))
    raise CommandError(code, _explain(answer))


def _explain(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        findings = [_finding(one) for one in problem.get("errors", [])]
        return "\n".join([str(problem["detail"]) if not findings else "the master refuses the request:", *findings])
    except (ValueError, KeyError, AttributeError):
        return f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}"


def _segment(name: str) -> str:
    """A name as one segment of a path. Empty and dotted names don't exist, and would result in another path."""
    if name in {"", ".", ".."}:
        raise CommandError(Exit.NOT_FOUND, f"there is nothing of the name {name!r}")
    return quote(name, safe="")


def _finding(problem: dict[str, str]) -> str:
    legal = f" (legal: {problem['legal']})" if problem.get("legal") else ""
    return f"  {problem['field']}: {problem['message']}{legal}"
