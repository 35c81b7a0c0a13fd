"""Probes of the links between a gang's nodes, before RPC, Gloo and NCCL would hang on an unreachable one.

One worker of each node listens on an ephemeral port of its node's address, as those libraries will, publishes the port
to the others, and calls all of them at once. Both directions are probed. A firewall between two nodes therefore causes
an error with both their names, not a hang.
"""

import asyncio
import errno
import hmac
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from rolecall.network.interfaces import interface_of
from rolecall.spec.errors import PeerLost, UnreachablePeer
from rolecall.spec.model import Value
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.token import mac

PROBE_S = 5.0
"""The timeout of a call: shorter than that of TCP, longer than the delay by a lost packet."""
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BACKLOG = 1024
_NOT_LISTENING = "can't listen at its own address"
_NOT_A_NODE = "another program answers there"


class Exchange(Protocol):
    """The exchange of messages between the nodes of a gang before they can connect to each other."""

    def post(self, topic: str, text: str) -> None:
        """Publish this node's message on a topic to all nodes."""
        ...

    def gather(self, topic: str) -> dict[str, str]:
        """The messages by node name; raises a `RendezvousTimeout` that names the missing nodes."""
        ...


class Listener(Value):
    """A node's listener for the probes of the others."""

    address: str
    interface: str
    ports: str
    """The kernel's range for the ports of RPC, Gloo and NCCL, such as `32768 to 60999`."""
    port: int | None = None
    error: str | None = None
    """The reason if it does not listen."""


class Link(Value):
    """The result of one probe, from a node to another."""

    origin: str
    target: str
    seconds: float | None = None
    """The time from the call to the answer."""
    error: str | None = None
    """One line with both nodes, the address and the cause."""
    remedy: str = ""


class Links(Value):
    """A node's message on the topic `links`: the links that it probed."""

    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Prober:
    """One node in the probes; `secret` is the secret of the attempt."""

    node: str
    address: str
    secret: str
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, launch: WorkerLaunch) -> "Prober":
        """The prober of the node that the worker runs on."""
        node = launch.worker.node
        return cls(node, launch.gang.addresses[node], launch.secret)

    def call(self, target: str, nonce: str) -> str:
        """The caller's proof to `target` that it knows the secret, without revealing it."""
        return mac(self.secret, "reach", "call", target, nonce)

    def answer(self, target: str, nonce: str) -> str:
        """The proof in the answer of `target`."""
        return mac(self.secret, "reach", "answer", target, nonce)


def probe_links(prober: Prober, exchange: Exchange, *, unreachable_only: bool = False) -> list[Link]:
    """Probe all links between the nodes of the gang, together with the others. All nodes get the same result.

    `unreachable_only` omits the reachable links, whose number is quadratic in the number of nodes.
    """
    return asyncio.run(_probe_links(prober, exchange, unreachable_only=unreachable_only))


def gather_links(exchange: Exchange) -> list[Link]:
    """The result of `probe_links`, for a worker on whose node another worker probes."""
    return [link for text in exchange.gather("links").values() for link in Links.model_validate_json(text).links]


def require_reachable(links: list[Link]) -> None:
    """Raise `UnreachablePeer` for the first unreachable link, with the number of the others."""
    failed = sorted((link for link in links if link.error), key=lambda link: (link.origin, link.target))
    if failed:
        more = len(failed) - 1
        others = f" ({more} more link{'s are' if more > 1 else ' is'} unreachable)" if more else ""
        raise UnreachablePeer(f"{failed[0].error}; {failed[0].remedy}{others}")


def require_listener(prober: Prober, node: str, address: str, port: int, timeout_s: float) -> None:
    """Raise `UnreachablePeer` if the address is unreachable, and `PeerLost` if it refuses the connection."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError as error:
        own = _listener(prober.address)
        target = own.model_copy(update={"address": address, "port": port})
        link = _unreachable(prober, node, own, target, _cause(error, timeout_s))
        if isinstance(error, ConnectionRefusedError):
            raise PeerLost(f"{link.error}: the process there probably exited; if not, {link.remedy}") from error
        raise UnreachablePeer(f"{link.error}; {link.remedy}") from error


async def _probe_links(prober: Prober, exchange: Exchange, *, unreachable_only: bool) -> list[Link]:
    server, own = await _listen(prober)
    try:
        # In a thread, because the event loop must answer the other nodes meanwhile.
        await asyncio.to_thread(exchange.post, "listeners", own.model_dump_json())
        listeners = await asyncio.to_thread(exchange.gather, "listeners")
        known = {node: Listener.model_validate_json(text) for node, text in listeners.items()}
        probed = await asyncio.gather(*(_probe_node(prober, node, known) for node in known if node != prober.node))
        worth_sending = tuple(link for link in probed if link.error or not unreachable_only)
        await asyncio.to_thread(exchange.post, "links", Links(links=worth_sending).model_dump_json())
        return await asyncio.to_thread(gather_links, exchange)
    finally:
        if server is not None:
            server.close()


async def _listen(prober: Prober) -> tuple[asyncio.Server | None, Listener]:
    listener = _listener(prober.address)
    try:
        server = await asyncio.start_server(partial(_answer, prober), prober.address, 0, backlog=_BACKLOG)
    except OSError as error:
        return None, listener.model_copy(update={"error": _reason(error)})
    return server, listener.model_copy(update={"port": server.sockets[0].getsockname()[1]})


async def _answer(prober: Prober, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a caller that knows the secret with a proof that it knows it, too."""
    try:
        async with asyncio.timeout(PROBE_S):
            nonce, _, proof = (await reader.readline()).decode().rstrip("\n").partition(" ")
            if hmac.compare_digest(proof.encode(), prober.call(prober.node, nonce).encode()):
                writer.write(_line(prober.answer(prober.node, nonce)))
                await writer.drain()
    except (OSError, ValueError):
        pass  # The caller has disconnected, or does not know the secret.
    finally:
        writer.close()


async def _probe_node(prober: Prober, node: str, listeners: Mapping[str, Listener]) -> Link:
    own, target = listeners[prober.node], listeners[node]
    if target.port is None:
        return _unreachable(prober, node, own, target, f"{node} {_NOT_LISTENING} ({target.error})")
    begin, nonce = prober.clock(), secrets.token_hex(16)
    try:
        async with asyncio.timeout(PROBE_S):
            answer = await _call(_line(nonce, prober.call(node, nonce)), target.address, target.port)
    except OSError as error:
        return _unreachable(prober, node, own, target, _cause(error, PROBE_S))
    except ValueError:
        answer = b"more than a line"  # The reader's limit, which no node exceeds.
    if not hmac.compare_digest(answer, _line(prober.answer(node, nonce))):
        return _unreachable(
            prober, node, own, target, _NOT_A_NODE if answer else "it closes the connection without an answer"
        )
    return Link(origin=prober.node, target=node, seconds=prober.clock() - begin)


async def _call(line: bytes, address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.close()


def _line(*words: str) -> bytes:
    return f"{' '.join(words)}\n".encode()


def _unreachable(prober: Prober, node: str, own: Listener, target: Listener, cause: str) -> Link:
    where = f"{target.address}:{target.port}" if target.port else target.address
    error = f"node {prober.node} ({own.address}, {own.interface}) can't reach node {node} at {where}: {cause}"
    if _NOT_LISTENING in cause or cause == _NOT_A_NODE:
        remedy = (
            f"give every node its own address that all others can reach: nodes use the interface of their route to "
            f"MASTER_ADDR, on {node} {target.interface}"
        )
    else:
        ports = f"the gang ports (net.ipv4.ip_local_port_range: {target.ports})"
        remedy = f"open {ports} between the nodes in both directions"
    return Link(origin=prober.node, target=node, error=error, remedy=remedy)


def _cause(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return f"timed out after {timeout_s:.0f} s"
    return _reason(error)


def _reason(error: OSError) -> str:
    """The kernel's text, without the address that asyncio adds."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _listener(address: str) -> Listener:
    first, last = _PORT_RANGE.read_text().split()
    return Listener(address=address, interface=interface_of(address) or "no interface", ports=f"{first} to {last}")
