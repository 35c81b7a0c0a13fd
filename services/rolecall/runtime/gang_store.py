"""The store through which a gang meets: rank 0 has it, the other workers connect, and then nobody else can.

Torch's `TCPStore` has no authentication: whoever connects can list, read and write every key, RPC's addresses among
them. So the workers write nothing of use to it before it is closed to strangers:

1. Rank 0 listens on the gang's address alone.
2. Each worker connects and states, with a MAC under the attempt's secret, which connections are its own.
3. When all have arrived, rank 0 closes the listening socket, and cuts off the connections that no worker has stated.
   Then it says so, again with a MAC.
4. From then on all keys lie below a prefix that is drawn from the secret.

A stranger who came before step 3 has seen which ports the workers call from, and may have spoilt a statement: that ends
the attempt with `IntrudedGang`.
"""

import hashlib
import hmac
import json
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from rolecall.edge.logs import about
from rolecall.spec.errors import IntrudedGang, PeerLost, RendezvousTimeout, RolecallError, UnreachablePeer
from rolecall.spec.plan import WorkerLaunch

_SEALED = "sealed"
_SEAL_TIMEOUT_S = 30.0
_ESTABLISHED = 1
_LOG = logging.getLogger(__name__)

Endpoint = tuple[str, int]


class _Connection(NamedTuple):
    fd: int
    here: Endpoint
    there: Endpoint


class Entrance:
    """One worker's side of the gang's store until it is closed. Made by `host` or `enter`."""

    def __init__(self, launch: WorkerLaunch, clients: Sequence[dist.TCPStore], listener: int | None = None) -> None:
        self._launch = launch
        self._clients = clients
        self._store = clients[0]
        self._listener = listener

    @property
    def port(self) -> int:
        """Where rank 0 listens."""
        return self._store.port

    def assemble(self, missing: Callable[[list[int]], Exception], timeout_s: float) -> list[dist.Store]:
        """Wait for the whole gang and close the store; returns what each client sees of it from then on.

        Raises what `missing` makes of the ranks that have not arrived in time, `IntrudedGang` if a stranger took part.
        """
        for client in self._clients:
            client.num_keys()  # Who is answered has been accepted, and doesn't wait in the listening socket's queue.
        mine = [list(one.here) for one in _connections() if self._is_own(one)]
        self._store.set(f"arrived/{self._launch.worker.rank}", self._sign("arrived", json.dumps(mine)))
        arrivals = [f"arrived/{worker.rank}" for worker in self._launch.gang.workers]
        try:
            self._store.wait(arrivals, timedelta(seconds=timeout_s))
        except dist.DistStoreError as error:
            late = [rank for rank, key in enumerate(arrivals) if not self._store.check([key])]
            raise missing(late) from error
        if self._listener is not None:
            self._seal(self._listener, arrivals)
        self._await_seal()
        prefix = _mac(self._launch.secret, "prefix")
        return [dist.PrefixStore(prefix, client) for client in self._clients]

    def _is_own(self, connection: _Connection) -> bool:
        return connection.there in {(address, self.port) for address in _addresses(self._launch.master_addr)}

    def _seal(self, listener: int, arrivals: list[str]) -> None:
        _stop_listening(listener)
        # The store answers when it has taken in what it had accepted before, so that `_connections` has all.
        stated = [
            end
            for key, said in zip(arrivals, self._store.multi_get(arrivals), strict=True)
            for end in self._read(key, said)
        ]
        _cut_off_strangers([one for one in _connections() if one.here[1] == self.port], stated)
        self._store.set(_SEALED, self._sign(_SEALED, ""))

    def _read(self, key: str, said: bytes) -> Iterator[Endpoint]:
        text = self._verified("arrived", said)
        if text is None:
            raise IntrudedGang(
                f"the value of {key} in the gang's store was not written by a worker of this attempt; {_REMEDY}"
            )
        yield from ((str(address), int(port)) for address, port in json.loads(text))

    def _await_seal(self) -> None:
        try:
            self._store.wait([_SEALED], timedelta(seconds=_SEAL_TIMEOUT_S))
        except dist.DistStoreError as error:
            raise RendezvousTimeout(f"rank 0 did not close the gang's store within {_SEAL_TIMEOUT_S:.0f} s") from error
        if self._verified(_SEALED, self._store.get(_SEALED)) is None:
            raise IntrudedGang(f"another process than rank 0 announced that the gang's store is closed; {_REMEDY}")

    def _sign(self, topic: str, text: str) -> str:
        return f"{_mac(self._launch.secret, topic, text)} {text}"

    def _verified(self, topic: str, said: bytes) -> str | None:
        mac, _, text = said.decode(errors="replace").partition(" ")
        return text if hmac.compare_digest(mac.encode(), _mac(self._launch.secret, topic, text).encode()) else None


_REMEDY = "allow only the gang's nodes to reach the gang ports"


def host(launch: WorkerLaunch, clients: int, timeout_s: float) -> Entrance:
    """Rank 0's entrance: make the store, on an ephemeral port of the gang's address, and connect to it."""
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
    """The entrance of every other worker: connect to the store."""
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
    """Close the socket that the store listens on; who is connected stays so.

    The store can't be asked to, and keeps the descriptor's number. So that number gets another socket. With the last
    descriptor of the old one the kernel closes it, and the store's event loop hears no more of it. The new one listens
    too, where nobody is told to connect: should the loop accept just now, it finds no connection and not an error.
    """
    with socket.socket(socket.AF_UNIX) as nothing:
        nothing.setblocking(False)
        nothing.bind(b"")  # A name of the kernel's choice.
        nothing.listen(1)
        os.dup2(nothing.fileno(), listener, inheritable=False)


def _cut_off_strangers(held: list[_Connection], stated: list[Endpoint]) -> None:
    """As many connections must remain as the workers have stated.

    Where addresses are translated on the way none of them may look as stated; then their number alone must fit.
    """
    strangers = [one for one in held if one.there not in stated]
    if len(held) == len(stated):
        return
    if len(held) < len(stated):
        raise PeerLost("a worker left before its gang was complete")
    if len(held) - len(strangers) != len(stated):
        raise IntrudedGang(
            f"{len(held)} connections to the gang's store, of {len(stated)} that its workers made; {_REMEDY}"
        )
    for stranger in strangers:
        text = "closed the connection of %s:%d to the gang's store, which no worker of the gang made"
        _LOG.warning(text, *stranger.there, extra=about("intruder_disconnected"))
        with socket.socket(fileno=os.dup(stranger.fd)) as connection:
            connection.shutdown(socket.SHUT_RDWR)


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
            return _Connection(fd, _endpoint(one.getsockname()), _endpoint(one.getpeername()))
    except OSError:  # No socket, or gone by now.
        return None


def _endpoint(name: tuple[str, int]) -> Endpoint:
    return _plain(name[0]), name[1]


def _plain(address: str) -> str:
    """Without a scope, and IPv4 as such: torch connects by sockets of IPv6."""
    return address.partition("%")[0].removeprefix("::ffff:")


def _addresses(host: str) -> set[str]:
    return {_plain(str(found[4][0])) for found in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}


def _mac(secret: str, *words: str) -> str:
    return hmac.new(secret.encode(), "\0".join(words).encode(), hashlib.sha256).hexdigest()
