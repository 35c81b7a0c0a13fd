"""Calls to a master's HTTP API. Every failure is a `ClientError` that says what to do."""

import re
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import SSEError
from pydantic import BaseModel, ValidationError

from rolecall import __version__
from rolecall.client.connection import Connection
from rolecall.client.errors import ClientError, ConfigurationError, Refused, Unauthorized, UnknownName, Unreachable
from rolecall.client.uninterrupted import begin, open_stream, uninterrupted
from rolecall.edge.tls import client_options, explain, request_options
from rolecall.spec.errors import PROBLEM_PREFIX, STANDBY, SettingsError, about_field

_M = TypeVar("_M", bound=BaseModel)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_ERRORS: dict[int, type[ClientError]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: UnknownName,
    400: Refused,
    409: Refused,
    413: Refused,
    422: Refused,
    429: Refused,
}

_AWAY = {502, 503, 504}
"""The answers of a master that stands by, and of a proxy in front of a master that doesn't listen yet."""


class Transport:
    """A connection to one master, and a context manager. `raw` is the body of the last response."""

    def __init__(self, connection: Connection) -> None:
        self.url = connection.url
        self.raw: Any = None
        self._trust = connection.trust
        self._origin = connection.origin
        headers = {"Authorization": f"Bearer {connection.token}"}
        try:
            options = client_options(connection.url, connection.trust)
        except SettingsError as error:
            raise ConfigurationError(str(error)) from None
        self._http = httpx.Client(base_url=connection.url, headers=headers, timeout=_TIMEOUT, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            begin(self._http.close)  # Without waiting for it, because a stream may have left a lock taken.
        else:
            self.close()

    def close(self) -> None:
        """Close the connections to the master."""
        self._http.close()

    def call(self, kind: type[_M], method: str, path: str, **given: Any) -> _M:
        answer = self.send(method, path, **given)
        with self._understood():
            return kind.model_validate(answer, extra="ignore")

    def items(self, kind: type[_M], path: str, key: str, **given: Any) -> list[_M]:
        answer = self.send("GET", path, **given)
        with self._understood():
            return [kind.model_validate(one, extra="ignore") for one in answer[key]]

    @contextmanager
    def _understood(self) -> Generator[None]:
        """Turn missing or invalid fields into a `ClientError`. Unknown fields of a newer master are ignored."""
        try:
            yield
        except (ValidationError, LookupError, TypeError) as error:
            why = f"{error.error_count()} of its fields are not" if isinstance(error, ValidationError) else "it is not"
            raise Unreachable(
                f"{self.url} answers what Rolecall {__version__} can't read: {why} as they should be; "
                "is it a Rolecall master, and of this version?",
            ) from None

    def send(self, method: str, path: str, **given: Any) -> Any:
        with self._explained():
            options = given | request_options(self._trust)
            answer = uninterrupted(lambda: self._http.request(method, path, **options))
        self._check(answer)
        try:
            self.raw = answer.json() if answer.content else None
        except ValueError:
            raise Unreachable(f"{self.url} answers, but is no Rolecall master") from None
        return self.raw

    @contextmanager
    def stream(
        self, path: str, query: dict[str, Any], read_s: float, headers: dict[str, str] | None = None
    ) -> Generator[httpx.Response]:
        timeout = httpx.Timeout(30.0, connect=5.0, read=read_s)
        options = request_options(self._trust)
        request = self._http.build_request("GET", path, params=query, headers=headers, timeout=timeout, **options)
        with self._explained(), closing(open_stream(lambda: self._http.send(request, stream=True))) as answer:
            if answer.is_error:
                answer.read()
            self._check(answer)
            yield answer

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except httpx.InvalidURL as error:
            raise ConfigurationError(f"{self.url} is not a URL: {error}") from None
        except httpx.UnsupportedProtocol:
            raise ConfigurationError(f"{self.url} is not an HTTP URL; write http://HOST:PORT") from None
        except SSEError:
            raise Unreachable(
                f"{self.url} answers without a stream of events; is it a Rolecall master, and of this version?"
            ) from None
        except httpx.TransportError as error:
            if why := explain(error, self.url, self._trust):
                raise Unreachable(f"no master answers at {self.url}: {why}") from None
            raise Unreachable(
                f"no master answers at {self.url} ({error or type(error).__name__}); if it is starting, try again in a "
                "moment; otherwise start one with `rolecall local`, or name another with --url or ROLECALL_URL",
            ) from None

    def _check(self, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        if answer.status_code == 401:
            source = f" from {self._origin}" if self._origin else ""
            raise Unauthorized(
                f"{self.url} does not accept the token{source}; pass a token of this cluster, or set ROLECALL_TOKEN to "
                "one (an operator creates it with `rolecall tokens create`)"
            )
        text = _explain(answer)
        if answer.status_code == 403 and self._origin:
            text += f" (this token is from {self._origin}; pass another token)"
        if answer.status_code == 404:
            text += f" (asked the master at {self.url})"  # Perhaps of another cluster than the user has in mind.
        if answer.status_code in _AWAY and not _has_own_remedy(answer):
            text += f"; if the master at {self.url} is starting, try again in a moment"
        raise _ERRORS.get(answer.status_code, Unreachable)(text)


def _explain(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        findings = [f"  {about_field(one['field'], one['message'])}{_facts(one)}" for one in problem.get("errors", [])]
        return "\n".join([str(problem["detail"]) if not findings else "the master refuses the request:", *findings])
    except (ValueError, KeyError, AttributeError):
        return f"{answer.request.url} answered {answer.status_code} {answer.reason_phrase}"


def _has_own_remedy(answer: httpx.Response) -> bool:
    """True for the problem documents of a master that leads. Their texts say what to do."""
    try:
        kind = str(answer.json().get("type"))
    except (ValueError, AttributeError):
        return False
    return kind.startswith(PROBLEM_PREFIX) and kind != PROBLEM_PREFIX + STANDBY


def _facts(problem: Mapping[str, Any]) -> str:
    """The given and the valid values in parentheses; without the given one if there is none or the message has it."""
    given = problem.get("given") or "null"
    named = given.strip('"')
    message = _THOUSANDS.sub("", problem["message"])
    # A message can't name an empty value, but every message contains it.
    is_named = named.strip() and re.search(rf"(?<!\w){re.escape(named)}(?!\w)", message)
    facts = [f"given: {given}"] if given != "null" and not is_named else []
    facts += [f"valid: {problem['legal']}"] if problem.get("legal") else []
    return f" ({'; '.join(facts)})" if facts else ""


def segment(name: str) -> str:
    """A name as one segment of a path. Raises `UnknownName` for a name that would result in another path.

    Nothing has such a name, and callers can use a name that is accepted as the name of a file.
    """
    if name in {"", ".", ".."} or "/" in name:
        raise UnknownName(f"{name!r} does not exist")
    return quote(name, safe="")
