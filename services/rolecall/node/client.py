"""The node's calls to the master."""

from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from rolecall import __version__
from rolecall.node.reconcile import Key
from rolecall.spec.errors import NotFound, RolecallError, SettingsError
from rolecall.spec.node import NodeSpec
from rolecall.spec.wire import Desired, Heartbeat, Registered, StreamOffset, Surroundings

_TIMEOUT_S = 10.0
_M = TypeVar("_M", bound=BaseModel)


class MasterUnreachable(RolecallError):
    """The master does not answer, or can't at the moment; the same call may succeed later."""


class MasterFull(MasterUnreachable):
    """The master has no room for this at the moment."""


class NameTaken(RolecallError):
    """Another node bears this name; if that one has just died, the master will soon notice."""


class StreamRefused(RolecallError):
    """The master has no use for this worker's streams."""


class MasterClient:
    """One HTTP client for the daemon's life. A wrong token ends the daemon (`SettingsError`) wherever it is noticed."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        # Proxies of the environment are for the outside world and not for the cluster's own network.
        self._http = httpx.AsyncClient(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=_TIMEOUT_S, trust_env=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def register(self, spec: NodeSpec) -> Registered:
        """Enter the cluster. Raises `NameTaken`, or `SettingsError` when the master refuses for good."""
        answer = await self._send("POST", "/internal/nodes", json=spec.model_dump(mode="json"))
        if answer.is_client_error:
            refusal = f"the master at {self.url} refuses node {spec.name} (version {__version__}): {_detail(answer)}"
            raise NameTaken(refusal) if answer.status_code in {httpx.codes.CONFLICT} else SettingsError(refusal)
        return _parse(Registered, answer)

    async def heartbeat(self, name: str, beat: Heartbeat) -> Desired:
        """Report and ask. Raises `NotFound` when the master does not know this life of the node: register again."""
        answer = await self._send(
            "POST",
            f"/internal/nodes/{name}/heartbeat",
            json=beat.model_dump(mode="json"),
            timeout=beat.wait_s + _TIMEOUT_S,
        )
        if answer.status_code in {httpx.codes.NOT_FOUND, httpx.codes.CONFLICT}:
            raise NotFound(_detail(answer))
        return _parse(Desired, answer)

    async def surroundings(self, name: str) -> Surroundings:
        """What the node measures itself against."""
        return _parse(Surroundings, await self._send("GET", f"/internal/nodes/{name}/surroundings"))

    async def leave(self, name: str) -> None:
        """Take the node out of the cluster."""
        await self._send("DELETE", f"/internal/nodes/{name}", timeout=1.0)

    async def ship(self, key: Key, stream: str, offset: int, piece: bytes) -> int:
        """Send a piece of a worker's stream; return where the next one starts. Raises `StreamRefused`, `MasterFull`."""
        path = f"/internal/jobs/{key.job}/attempts/{key.attempt}/ranks/{key.rank}/streams/{stream}"
        answer = await self._send("PUT", path, params={"offset": offset}, content=piece)
        if answer.is_client_error:
            raise StreamRefused(_detail(answer))
        return _parse(StreamOffset, answer).size

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise MasterUnreachable(f"{self.url}: {_trouble(error)}") from error
        if answer.status_code in {httpx.codes.INSUFFICIENT_STORAGE}:
            raise MasterFull(f"{self.url}: {_detail(answer)}")
        if answer.is_server_error:
            raise MasterUnreachable(f"{self.url}: {_detail(answer)}")
        if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            raise SettingsError(
                f"the master at {self.url} does not accept ROLECALL_NODE_TOKEN; give this node the master's own"
            )
        return answer


def _parse(kind: type[_M], answer: httpx.Response) -> _M:
    try:
        return kind.model_validate_json(answer.raise_for_status().content)
    except (httpx.HTTPStatusError, ValidationError) as error:
        raise MasterUnreachable(
            f"{answer.request.url} gave an answer that node version {__version__} can't read "
            f"(is something else listening there, or a master of another version?): {_detail(answer)}"
        ) from error


def _trouble(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        why = str(error) or "no answer"
        return (
            f"can't be connected to ({why}); is the master up, is ROLECALL_PORT its port, and does a firewall let us?"
        )
    if isinstance(error, httpx.TimeoutException):
        return "it takes calls but does not answer; is the master overloaded, or is something else listening there?"
    return str(error) or type(error).__name__


def _detail(answer: httpx.Response) -> str:
    """What a problem document says, or whatever the answer is instead."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason_phrase} {answer.text[:200]}".strip()
