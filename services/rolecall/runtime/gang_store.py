"""The store of a gang's rendezvous: rank 0 hosts it, and closes it to other programs when all workers are connected.

Torch's `TCPStore` has no authentication: every client can list, read and write all keys, including RPC's addresses.
Therefore the workers write no such data before the store is closed:

1. Rank 0 listens only on the gang's address.
2. Each worker connects and declares its connections, with a MAC under the attempt's secret.
3. When all have arrived, rank 0 closes the listening socket and the undeclared connections. It announces this with a
   MAC as well.
4. From then on, all keys have a prefix derived from the secret.

A client that connected before step 3 can have seen the workers' ports or overwritten a declaration. A forged
declaration ends the attempt with `IntrudedGang`.
"""

import hmac
import json
import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from rolecall.logs import about
from rolecall.spec.errors import IntrudedGang, PeerLost, RendezvousTimeout, RolecallError, UnreachablePeer
from rolecall.spec.plan import WorkerLaunch
from rolecall.spec.token import mac

_SEALED = "sealed"
_SEAL_TIMEOUT_S = 30.0
_ESTABLISHED = 1
_LOG = logging.getLogger(__name__)

Endpoint = tuple[str, int]


class _Connection(NamedTuple):
    fd: int
    local: Endpoint
    remote: Endpoint


class Entrance:
    """One worker's connections to the gang's store until it is closed. Created by `host` or `enter`."""

    def __init__(self, launch: WorkerLaunch, clients: Sequence[dist.TCPStore], listener: int | None = None) -> None:
        self._launch = launch
        self._clients = clients
        self._store = clients[0]
        self._listener = listener

    @property
    def port(self) -> int:
        """The port of rank 0."""
        return self._store.port

    def assemble(self, missing: Callable[[list[int]], Exception], timeout_s: float) -> list[dist.Store]:
        """Wait for the whole gang and close the store. Returns the prefixed store of each client.

        Raises the exception that `missing` returns for the ranks that have not arrived in time, and `IntrudedGang` if
        another program took part.
        """
        for client in self._clients:
            client.num_keys()  # After an answer, the connection is accepted and not in the listening socket's queue.
        found = socket.getaddrinfo(self._launch.master_addr, 0, type=socket.SOCK_STREAM)
        endpoints = {(_plain(str(one[4][0])), self.port) for one in found}
        own = [list(one.local) for one in _connections() if one.remote in endpoints]
        self._store.set(f"arrived/{self._launch.worker.rank}", self._sign("arrived", json.dumps(own)))
        arrivals = [f"arrived/{worker.rank}" for worker in self._launch.gang.workers]
        try:
            self._store.wait(arrivals, timedelta(seconds=timeout_s))
        except dist.DistStoreError as error:
            late = [rank for rank, key in enumerate(arrivals) if not self._store.check([key])]
            raise missing(late) from error
        if self._listener is not None:
            self._seal(self._listener, arrivals)
        self._await_seal()
        prefix = mac(self._launch.secret, "prefix")
        return [dist.PrefixStore(prefix, client) for client in self._clients]

    def _seal(self, listener: int, arrivals: list[str]) -> None:
        _stop_listening(listener)
        # The store answers after it has registered all accepted connections, so that `_connections` has them all.
        declared: list[Endpoint] = []
        for key, value in zip(arrivals, self._store.multi_get(arrivals), strict=True):
            if (text := self._verified("arrived", value)) is None:
                raise IntrudedGang(
                    f"the value of {key} in the gang's store was not written by a worker of this attempt; {_REMEDY}"
                )
            declared += [(str(address), int(port)) for address, port in json.loads(text)]
        _disconnect_undeclared([one for one in _connections() if one.local[1] == self.port], declared)
        self._store.set(_SEALED, self._sign(_SEALED, ""))

    def _await_seal(self) -> None:
        try:
            self._store.wait([_SEALED], timedelta(seconds=_SEAL_TIMEOUT_S))
        except dist.DistStoreError as error:
            raise RendezvousTimeout(f"rank 0 did not close the gang's store within {_SEAL_TIMEOUT_S:.0f} s") from error
        if self._verified(_SEALED, self._store.get(_SEALED)) is None:
            raise IntrudedGang(f"another process than rank 0 announced that the gang's store is closed; {_REMEDY}")

    def _sign(self, topic: str, text: str) -> str:
        return f"{mac(self._launch.secret, topic, text)} {text}"

    def _verified(self, topic: str, value: bytes) -> str | None:
        given, _, text = value.decode(errors="replace").partition(" ")
        return text if hmac.compare_digest(given.encode(), mac(self._launch.secret, topic, text).encode()) else None


_REMEDY = "allow only the gang's nodes to reach the gang ports"


def host(launch: WorkerLaunch, clients: int, timeout_s: float) -> Entrance:
    """Create the store, on an ephemeral port of the gang's address, and connect to it, as rank 0."""
    _require_secret(launch)
    listener = _listen(launch)
    port, descriptor = listener.getsockname()[1], listener.detach()
    store = dist.TCPStore(
        launch.master_addr,
        port,
        None,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )
    others = [_connect(launch, store.port, timeout_s) for _ in range(clients - 1)]
    return Entrance(launch, [store, *others], descriptor)


def enter(launch: WorkerLaunch, port: int, clients: int, timeout_s: float) -> Entrance:
    """Connect to the store, as any other worker."""
    _require_secret(launch)
    return Entrance(launch, [_connect(launch, port, timeout_s) for _ in range(clients)])


def _require_secret(launch: WorkerLaunch) -> None:
    if not launch.secret:
        raise RolecallError("the master gave this attempt no secret: it has an older release; upgrade it first")


def _listen(launch: WorkerLaunch) -> socket.socket:
    family, kind, protocol, _, target = socket.getaddrinfo(launch.master_addr, 0, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.bind(target)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise UnreachablePeer(
            f"node {launch.worker.node} can't listen at {launch.master_addr}, the gang's address ({error.strerror}); "
            "give every node its own address that all others can reach"
        ) from error
    return listener


def _connect(launch: WorkerLaunch, port: int, timeout_s: float) -> dist.TCPStore:
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(launch.master_addr, port, None, is_master=False, timeout=timeout, wait_for_workers=False)


def _stop_listening(listener: int) -> None:
    """Close the listening socket of the store; existing connections stay open.

    The store has no such function and keeps the descriptor's number. Therefore another socket gets that number. The
    kernel then closes the old socket, and the store's event loop gets no more events of it. The new socket listens at
    an unknown name: if the loop accepts at this moment, it gets no connection instead of an error.
    """
    with socket.socket(socket.AF_UNIX) as replacement:
        replacement.setblocking(False)
        replacement.bind(b"")  # The kernel chooses the name.
        replacement.listen(1)
        os.dup2(replacement.fileno(), listener, inheritable=False)


def _disconnect_undeclared(held: list[_Connection], declared: list[Endpoint]) -> None:
    """Close undeclared connections, so that the declared ones remain.

    If addresses are translated in the network, none can match. Then only the number of connections must match.
    """
    undeclared = [one for one in held if one.remote not in declared]
    if len(held) == len(declared):
        return
    if len(held) < len(declared):
        raise PeerLost("a worker left before its gang was complete")
    if len(held) - len(undeclared) != len(declared):
        raise IntrudedGang(
            f"{len(held)} connections to the gang's store, of {len(declared)} that its workers made; {_REMEDY}"
        )
    for connection in undeclared:
        text = "closed the connection of %s:%d to the gang's store, which no worker of the gang made"
        _LOG.warning(text, *connection.remote, extra=about("intruder_disconnected"))
        with socket.socket(fileno=os.dup(connection.fd)) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)


def _connections() -> list[_Connection]:
    """This process's established TCP connections."""
    found = (_connection(int(name)) for name in os.listdir("/proc/self/fd"))
    return [one for one in found if one is not None]


def _connection(fd: int) -> _Connection | None:
    try:
        with socket.socket(fileno=os.dup(fd)) as one:
            if one.family not in {socket.AF_INET, socket.AF_INET6} or one.type != socket.SOCK_STREAM:
                return None
            if one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _ESTABLISHED:
                return None
            local, remote = ((_plain(name[0]), name[1]) for name in (one.getsockname(), one.getpeername()))
            return _Connection(fd, local, remote)
    except OSError:  # Not a socket, or closed meanwhile.
        return None


def _plain(address: str) -> str:
    """The address without a scope, and without the IPv6 form of IPv4, because torch connects with IPv6 sockets."""
    return address.partition("%")[0].removeprefix("::ffff:")
