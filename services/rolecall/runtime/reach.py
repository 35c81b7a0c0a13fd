"""Whether the nodes of a gang reach one another, looked at before RPC, Gloo and NCCL would hang on it.

One worker of each node listens on an ephemeral port of its node's address, as those will, tells the others where, and
calls all of them at once. Both directions of every way are tried, so that a firewall between two nodes becomes
one line with both their names and not a wait without a word.
"""

import asyncio
import errno
import hashlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from rolecall.spec.errors import PeerLost, UnreachablePeer
from rolecall.spec.model import Value
from rolecall.spec.plan import WorkerLaunch

TRY_S = 5.0
"""How long a node may take to answer a call: less than TCP needs to give up, more than it loses by a lost packet."""
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BACKLOG = 1024
_NOT_LISTENING = "can't listen at its own address"
_STRANGER = "somebody else answers there"


class Board(Protocol):
    """Where the nodes of a gang tell one another what they have to know before they can talk."""

    def post(self, topic: str, text: str) -> None:
        """Tell all nodes this node's word on a topic."""
        ...

    def gather(self, topic: str) -> dict[str, str]:
        """The word of every node by its name; raises `RendezvousTimeout` that names who is missing."""
        ...


class Listener(Value):
    """Where a node waits for the calls of the others."""

    address: str
    interface: str
    ports: str
    """From where its kernel takes the ports of RPC, Gloo and NCCL, e.g. `32768 to 60999`."""
    port: int | None = None
    trouble: str | None = None
    """Why it does not listen."""


class Way(Value):
    """One call from a node to another."""

    origin: str
    target: str
    seconds: float | None = None
    """From the call to the answer."""
    error: str | None = None
    """One line: who could not reach whom, where, and why."""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Explorer:
    """One node's part in the examination; `secret` is what only this attempt's workers know."""

    node: str
    address: str
    secret: str

    @classmethod
    def of(cls, launch: WorkerLaunch) -> "Explorer":
        """The explorer of the node that the worker runs on."""
        node = launch.worker.node
        return cls(node, launch.gang.addresses[node], launch.secret)

    def call(self, target: str, nonce: str) -> str:
        """What a caller says to `target`, to show that it knows the secret without telling it."""
        return self._mac("call", target, nonce)

    def answer(self, target: str, nonce: str) -> str:
        """What `target` answers to that call, to show the same."""
        return self._mac("answer", target, nonce)

    def _mac(self, *words: str) -> str:
        return hmac.new(self.secret.encode(), "\0".join(("reach", *words)).encode(), hashlib.sha256).hexdigest()


def explore(me: Explorer, board: Board, *, cut_only: bool = False) -> list[Way]:
    """Try all ways between the nodes of the gang, together with the others; returns the same at each of them.

    `cut_only` leaves out what is open: between many nodes that is a lot to tell.
    """
    return asyncio.run(_explore(me, board, cut_only=cut_only))


def told(board: Board) -> list[Way]:
    """What `explore` returns, for a worker whose node another explores."""
    return [way for text in board.gather("ways").values() for way in _Ways.model_validate_json(text).ways]


def require_open(ways: list[Way]) -> None:
    """Raise `UnreachablePeer` for the first way that is cut, with the number of the others."""
    cut = sorted((way for way in ways if way.error), key=lambda way: (way.origin, way.target))
    if cut:
        more = len(cut) - 1
        others = f" ({more} more way{'s are' if more > 1 else ' is'} cut)" if more else ""
        raise UnreachablePeer(f"{cut[0].error}; {cut[0].remedy}{others}")


def knock(me: Explorer, target: str, address: str, port: int, timeout_s: float) -> None:
    """Raise `UnreachablePeer` unless something listens there, or `PeerLost` where something did and no longer does."""
    try:
        socket.create_connection((address, port), timeout=timeout_s).close()
    except OSError as error:
        mine = _listener(me.address)
        theirs = mine.model_copy(update={"address": address, "port": port})
        way = _cut(me, target, mine, theirs, _because(error, timeout_s))
        if isinstance(error, ConnectionRefusedError):
            raise PeerLost(f"{way.error}, so who listened there is gone; or else {way.remedy}") from error
        raise UnreachablePeer(f"{way.error}; {way.remedy}") from error


async def _explore(me: Explorer, board: Board, *, cut_only: bool) -> list[Way]:
    server, mine = await _listen(me)
    try:
        # In a thread, because meanwhile the others' calls must be answered.
        await asyncio.to_thread(board.post, "listeners", mine.model_dump_json())
        listeners = await asyncio.to_thread(board.gather, "listeners")
        known = {node: Listener.model_validate_json(text) for node, text in listeners.items()}
        tried = await asyncio.gather(*(_try(me, node, known) for node in known if node != me.node))
        worth_telling = tuple(way for way in tried if way.error or not cut_only)
        await asyncio.to_thread(board.post, "ways", _Ways(ways=worth_telling).model_dump_json())
        return await asyncio.to_thread(told, board)
    finally:
        if server is not None:
            server.close()


class _Ways(Value):
    ways: tuple[Way, ...]


async def _listen(me: Explorer) -> tuple[asyncio.Server | None, Listener]:
    def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Coroutine[None, None, None]:
        return _answer(me, reader, writer)

    listener = _listener(me.address)
    try:
        server = await asyncio.start_server(answer, me.address, 0, backlog=_BACKLOG)
    except OSError as error:
        return None, listener.model_copy(update={"trouble": _said(error)})
    return server, listener.model_copy(update={"port": server.sockets[0].getsockname()[1]})


async def _answer(me: Explorer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Show whoever knows the secret that we know it, too."""
    try:
        async with asyncio.timeout(TRY_S):
            nonce, _, said = (await reader.readline()).decode().rstrip("\n").partition(" ")
            if hmac.compare_digest(said.encode(), me.call(me.node, nonce).encode()):
                writer.write(_line(me.answer(me.node, nonce)))
                await writer.drain()
    except (OSError, ValueError):
        pass  # The caller has gone, or it is a stranger; who called finds out by itself.
    finally:
        writer.close()


async def _try(me: Explorer, node: str, listeners: Mapping[str, Listener]) -> Way:
    mine, theirs = listeners[me.node], listeners[node]
    if theirs.port is None:
        return _cut(me, node, mine, theirs, f"{node} {_NOT_LISTENING} ({theirs.trouble})")
    begin, nonce = time.monotonic(), secrets.token_hex(16)
    try:
        async with asyncio.timeout(TRY_S):
            answer = await _call(_line(nonce, me.call(node, nonce)), theirs.address, theirs.port)
    except OSError as error:
        return _cut(me, node, mine, theirs, _because(error, TRY_S))
    except ValueError:
        answer = b"more than a line"  # The reader's limit: no node says so much.
    if not hmac.compare_digest(answer, _line(me.answer(node, nonce))):
        return _cut(me, node, mine, theirs, _STRANGER if answer else "it hangs up without a word")
    return Way(origin=me.node, target=node, seconds=time.monotonic() - begin)


async def _call(line: bytes, address: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.close()


def _line(*words: str) -> bytes:
    return f"{' '.join(words)}\n".encode()


def _cut(me: Explorer, node: str, mine: Listener, theirs: Listener, why: str) -> Way:
    where = f"{theirs.address}:{theirs.port}" if theirs.port else theirs.address
    error = f"node {me.node} ({mine.address}, {mine.interface}) can't reach node {node} at {where}: {why}"
    return Way(origin=me.node, target=node, error=error, remedy=_remedy(why, node, theirs))


def _remedy(why: str, node: str, theirs: Listener) -> str:
    if _NOT_LISTENING in why or why == _STRANGER:
        return (
            f"give every node an address of its own that all others reach: nodes use the interface of their route to "
            f"MASTER_ADDR, on {node} {theirs.interface}"
        )
    ports = f"the gang ports (net.ipv4.ip_local_port_range: {theirs.ports})"
    return f"open {ports} between the nodes in both directions"


def _because(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return f"timed out after {timeout_s:.0f} s"
    return _said(error)


def _said(error: OSError) -> str:
    """The kernel's own words; asyncio's would repeat the address."""
    return os.strerror(error.errno).lower() if error.errno else str(error)


def _listener(address: str) -> Listener:
    first, last = _PORT_RANGE.read_text().split()
    return Listener(address=address, interface=interface_of(address), ports=f"{first} to {last}")


def interface_of(address: str) -> str:
    """The network interface that bears `address`."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(known.address.partition("%")[0] == address for known in addresses):
            return name
    return "no interface"
