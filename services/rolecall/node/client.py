"""The node's calls to the master."""

import contextlib
import errno
from collections.abc import Callable
from typing import Any, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from rolecall import __version__
from rolecall.edge.tls import certificate_end, client_options, explain, request_options
from rolecall.node.reconcile import Key
from rolecall.spec.errors import PROBLEM_PREFIX, NotFound, RolecallError, SettingsError
from rolecall.spec.node import NodeSpec
from rolecall.spec.trust import Trust
from rolecall.spec.wire import INCARNATION_HEADER, ClusterInfo, Desired, Heartbeat, Registered, StreamOffset

_TIMEOUT_S = 10.0
_M = TypeVar("_M", bound=BaseModel)


_NOT_NOW = frozenset({httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_EARLY, httpx.codes.TOO_MANY_REQUESTS})
_REFUSALS = frozenset({httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN})
_REFUSED_BODIES = frozenset({httpx.codes.REQUEST_ENTITY_TOO_LARGE, httpx.codes.UNPROCESSABLE_ENTITY})
_PARTITION = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})


class MasterUnreachable(RolecallError):
    """The master does not answer, or can't at the moment; the same call can succeed later.

    `partitioned` is true if the network fails: not even a refusal of the connection arrives.
    """

    def __init__(self, text: str, *, partitioned: bool = False) -> None:
        super().__init__(text)
        self.partitioned = partitioned


class MasterRefuses(MasterUnreachable):
    """The master, or a proxy in front of it, refuses this node.

    `by_master` is true if the master itself refuses, which then gets no heartbeats of this node.
    """

    def __init__(self, text: str, *, by_master: bool = False) -> None:
        super().__init__(text)
        self.by_master = by_master


class MasterFull(MasterUnreachable):
    """The master has no space for this at the moment."""


class MasterFailed(MasterUnreachable):
    """The master failed at this call (500): the call may fail each time, while others succeed."""


class NameTaken(RolecallError):
    """Another node has this name; if that one has just died, the master soon notices."""


class ReportRefused(RolecallError):
    """The master, or a proxy in front of it, refuses this heartbeat, and would refuse the same one again."""

    def __init__(self, text: str, *, by_master: bool) -> None:
        super().__init__(text)
        self.by_master = by_master


class StreamRefused(RolecallError):
    """The master no longer accepts this worker's streams."""


class MasterClient:
    """The daemon's HTTP client.

    Every call raises `MasterUnreachable`, or `MasterRefuses` if the token is refused. Before that, `read_token` is
    called again, because a token in a file may have been rotated.
    """

    def __init__(self, url: str, read_token: Callable[[], str], trust: Trust | None = None) -> None:
        self.url = url
        self.trust = trust
        self.certificate_end: float | None = None
        """The end of the master's certificate as of the last response, in seconds since 1970; None without TLS."""
        self._read_token = read_token
        self._token = read_token()
        # Without the proxies of the environment, which are not for the cluster's own network.
        self._http = httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, **client_options(url, trust))

    async def close(self) -> None:
        await self._http.aclose()

    async def register(self, spec: NodeSpec) -> Registered:
        """Register the node. Raises `NameTaken`, or `MasterRefuses` if the master does not accept it."""
        answer = await self._send("POST", "/internal/nodes", json=spec.model_dump(mode="json"))
        if answer.is_client_error:
            refusal = f"the master at {self.url} refuses node {spec.name} (version {__version__}): {_detail(answer)}"
            raise (
                NameTaken(refusal)
                if answer.status_code in {httpx.codes.CONFLICT}
                else MasterRefuses(refusal, by_master=_is_masters(answer))
            )
        return _parse(Registered, answer)

    async def heartbeat(self, name: str, beat: Heartbeat) -> Desired:
        """Report the workers and get the desired ones.

        Raises `NotFound` if the master does not know this process of the node, which must register again, and
        `ReportRefused` if the report is too large or contains values that the master can't store.
        """
        answer = await self._send(
            "POST",
            f"/internal/nodes/{name}/heartbeat",
            json=beat.model_dump(mode="json"),
            timeout=beat.wait_s + _TIMEOUT_S,
        )
        if answer.status_code in {httpx.codes.NOT_FOUND, httpx.codes.CONFLICT}:
            raise NotFound(_detail(answer))
        if answer.status_code in _REFUSED_BODIES:
            raise ReportRefused(_detail(answer), by_master=_is_masters(answer))
        return _parse(Desired, answer)

    async def cluster(self, name: str) -> ClusterInfo:
        return _parse(ClusterInfo, await self._send("GET", f"/internal/nodes/{name}/surroundings"))

    async def answer(self, key: Key, inspection: int, body: bytes, about: dict[str, Any]) -> None:
        """Send a worker's answer to an inspection. The master drops answers for which nobody waits."""
        path = f"/internal/jobs/{key.job}/attempts/{key.attempt}/ranks/{key.rank}/inspections/{inspection}"
        await self._send("PUT", path, params=about, content=body)

    async def leave(self, name: str, started: str) -> None:
        await self._send("DELETE", f"/internal/nodes/{name}", timeout=1.0, headers={INCARNATION_HEADER: started})

    async def ship(self, key: Key, stream: str, offset: int, chunk: bytes, *, cut: bool = False) -> int:
        """Send a chunk of a worker's stream; return the offset of the next one. Raises `StreamRefused`.

        `cut` means that this node no longer has the bytes before `offset`.
        """
        path = f"/internal/jobs/{key.job}/attempts/{key.attempt}/ranks/{key.rank}/streams/{stream}"
        answer = await self._send(
            "PUT", path, params={"offset": offset} | ({"cut": "true"} if cut else {}), content=chunk
        )
        if answer.is_client_error:
            raise StreamRefused(_detail(answer))
        return _parse(StreamOffset, answer).size

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = await self._request(method, path, **options)
        if answer.status_code in _REFUSALS and self._has_new_token():
            answer = await self._request(method, path, **options)
        if answer.status_code in _REFUSALS:
            raise MasterRefuses(
                f"the master at {self.url} does not accept ROLECALL_NODE_TOKEN ({_detail(answer)}); "
                "give this node a token that the master accepts",
                by_master=_is_masters(answer),
            )
        if answer.status_code in {httpx.codes.INSUFFICIENT_STORAGE}:
            raise MasterFull(f"{self.url}: {_detail(answer)}")
        if answer.status_code in {httpx.codes.INTERNAL_SERVER_ERROR}:
            raise MasterFailed(f"{self.url}: {_detail(answer)}")
        if answer.is_server_error or answer.status_code in _NOT_NOW:
            raise MasterUnreachable(f"{self.url}: {_detail(answer)}")
        return answer

    async def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}"} | options.pop("headers", {})
        try:
            answer = await self._http.request(method, path, headers=headers, **options, **request_options(self.trust))
        # A proxy's answer may be none that can be decoded. If a job has used up the machine's threads, none is left to
        # resolve the master's name, which is a RuntimeError.
        except (httpx.RequestError, RuntimeError) as error:
            why = explain(error, self.url, self.trust) or _explain_failure(error)
            raise MasterUnreachable(f"{self.url}: {why}", partitioned=_is_partition(error)) from error
        self.certificate_end = certificate_end(answer) or self.certificate_end
        return answer

    def _has_new_token(self) -> bool:
        before = self._token
        # A file that is being replaced may be gone for a moment.
        with contextlib.suppress(SettingsError):
            self._token = self._read_token()
        return self._token != before


def _parse(kind: type[_M], answer: httpx.Response) -> _M:
    try:
        return kind.model_validate_json(answer.raise_for_status().content)
    except (httpx.HTTPStatusError, ValidationError) as error:
        raise MasterUnreachable(
            f"{answer.request.url} gave an answer that node version {__version__} can't read "
            f"(is something else listening there, or a master of another version?): {_detail(answer)}"
        ) from error


def _is_partition(error: Exception) -> bool:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx.ConnectTimeout) or (isinstance(cause, OSError) and cause.errno in _PARTITION):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _explain_failure(error: Exception) -> str:
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        why = str(error) or "no answer"
        questions = "is the master up, is ROLECALL_PORT its port, and does a firewall allow this node?"
        return f"connection failed ({why}); {questions}"
    if isinstance(error, httpx.TimeoutException):
        questions = "is the master overloaded, or is something else listening there?"
        return f"it accepts connections but does not answer; {questions}"
    return str(error) or type(error).__name__


def _detail(answer: httpx.Response) -> str:
    """The detail of a problem document, or the beginning of any other answer."""
    fallback = f"{answer.status_code} {answer.reason_phrase} {answer.text[:200]}".strip()
    return str(_problem(answer).get("detail", fallback))


def _is_masters(answer: httpx.Response) -> bool:
    """True if an error is the answer of a master and not of a proxy in front of it."""
    return str(_problem(answer).get("type")).startswith(PROBLEM_PREFIX)


def _problem(answer: httpx.Response) -> dict[str, Any]:
    """The problem document in an answer; empty if there is none."""
    try:
        found: Any = answer.json()
    except ValueError:
        return {}
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}
