# pyright: standard
"""Probes of the links between nodes: over real sockets, each node with a loopback address of its own."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from socket import create_server
from threading import Thread
from time import monotonic

import pytest
from tests.ports import free_port

from rolecall.network import links
from rolecall.network.links import Link, Listener, Prober, probe_links, require_listener, require_reachable
from rolecall.spec.errors import PeerLost, UnreachablePeer

FAR = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""


@dataclass
class SharedExchange:
    """An exchange for nodes that are threads of this process; `swapped` replaces messages."""

    nodes: tuple[str, ...]
    swapped: dict[tuple[str, str], str] = field(default_factory=dict)
    messages: dict[tuple[str, str], str] = field(default_factory=dict)
    news: threading.Condition = field(default_factory=threading.Condition)

    def of(self, node: str) -> "NodesExchange":
        return NodesExchange(self, node)


@dataclass
class NodesExchange:
    """One node's view of the exchange."""

    shared: SharedExchange
    node: str

    def post(self, topic: str, text: str) -> None:
        with self.shared.news:
            self.shared.messages[topic, self.node] = self.shared.swapped.get((topic, self.node), text)
            self.shared.news.notify_all()

    def gather(self, topic: str) -> dict[str, str]:
        keys = {(topic, node) for node in self.shared.nodes}
        with self.shared.news:
            assert self.shared.news.wait_for(lambda: keys <= self.shared.messages.keys(), timeout=20)
            return {node: self.shared.messages[topic, node] for node in self.shared.nodes}


def probe_all(
    addresses: dict[str, str],
    swapped: dict[tuple[str, str], str] | None = None,
    *,
    unreachable_only: bool = False,
    clock: Callable[[], float] = monotonic,
) -> list[list[Link]]:
    exchange = SharedExchange(tuple(addresses), swapped or {})
    probers = [Prober(node, address, "hello", clock) for node, address in addresses.items()]
    with ThreadPoolExecutor(len(probers)) as pool:
        return list(
            pool.map(lambda me: probe_links(me, exchange.of(me.node), unreachable_only=unreachable_only), probers)
        )


def listener(address: str, port: int | None, error: str | None = None) -> str:
    found = Listener(address=address, interface="eth9", ports="40000 to 49999", port=port, error=error)
    return found.model_dump_json()


def test_reachable_nodes_are_reachable_in_both_directions() -> None:
    found = probe_all({"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"})
    assert found[0] == found[1] == found[2]
    expected = {(one, other) for one in "abc" for other in "abc" if one != other}
    assert {(link.origin, link.target) for link in found[0]} == expected
    assert all(link.error is None and link.seconds is not None and link.seconds < links.PROBE_S for link in found[0])
    require_reachable(found[0])


def test_a_link_has_the_time_from_the_call_to_the_answer() -> None:
    ticks = count()
    found = probe_all({"a": "127.0.0.1", "b": "127.0.0.2"}, clock=lambda: 4.0 ** next(ticks))
    times = sorted(link.seconds or 0.0 for link in found[0])
    assert times in ([3.0, 48.0], [15.0, 60.0], [12.0, 63.0]), "the two probes take the first four readings"


def test_reachable_links_can_be_left_out() -> None:
    swapped = {("listeners", "c"): listener("127.0.0.3", None, "it is on fire")}
    found = probe_all({"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}, swapped, unreachable_only=True)
    assert found[0] == found[1] == found[2]
    assert {(link.origin, link.target) for link in found[0]} == {("a", "c"), ("b", "c")}


def test_one_node_has_no_links() -> None:
    assert probe_all({"a": "127.0.0.1"}) == [[]]


def test_a_closed_port_is_a_line_with_both_names_and_a_remedy() -> None:
    port = free_port("127.0.0.2")
    found = probe_all({"a": "127.0.0.1", "b": "127.0.0.2"}, {("listeners", "b"): listener("127.0.0.2", port)})
    assert found[0] == found[1]
    with pytest.raises(UnreachablePeer) as caught:
        require_reachable(found[0])
    assert str(caught.value) == (
        f"node a (127.0.0.1, lo) can't reach node b at 127.0.0.2:{port}: connection refused; open the gang ports "
        "(net.ipv4.ip_local_port_range: 40000 to 49999) between the nodes in both directions"
    )


def test_silence_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the connection, and nobody ever answers."""
    monkeypatch.setattr(links, "PROBE_S", 0.5)
    with create_server(("127.0.0.2", 0)) as mute:
        begin = monotonic()
        swapped = {("listeners", "b"): listener("127.0.0.2", mute.getsockname()[1])}
        found = probe_all({"a": "127.0.0.1", "b": "127.0.0.2"}, swapped)[0]
    assert monotonic() - begin < 5
    assert "timed out after" in next(link.error or "" for link in found if link.origin == "a")


def test_who_does_not_know_the_secret_gets_no_answer() -> None:
    exchange = SharedExchange(("a", "b"), {})
    probers = [Prober("a", "127.0.0.1", "hello"), Prober("b", "127.0.0.2", "good day")]
    with ThreadPoolExecutor(2) as pool:
        found, _ = pool.map(lambda me: probe_links(me, exchange.of(me.node)), probers)
    assert all("it closes the connection without an answer" in (link.error or "") for link in found)


@pytest.mark.parametrize("message", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 100_000])
def test_another_program_on_the_port_is_noticed(message: bytes) -> None:
    def be_strange() -> None:
        connection, _ = intruder.accept()
        with connection:
            connection.recv(100)
            connection.sendall(message)

    with create_server(("127.0.0.2", 0)) as intruder:
        thread = Thread(target=be_strange)
        thread.start()
        swapped = {("listeners", "b"): listener("127.0.0.2", intruder.getsockname()[1])}
        found = probe_all({"a": "127.0.0.1", "b": "127.0.0.2"}, swapped)[0]
        thread.join()
    cut = next(link for link in found if link.origin == "a")
    assert "another program answers there" in (cut.error or "")
    assert "its own address" in cut.remedy


def test_a_node_that_has_not_its_own_address_says_so() -> None:
    found = probe_all({"a": "127.0.0.1", "b": FAR})[0]
    cut = next(link for link in found if link.origin == "a")
    assert cut.error == (
        f"node a (127.0.0.1, lo) can't reach node b at {FAR}: b can't listen at its own address "
        "(cannot assign requested address)"
    )
    assert next(link for link in found if link.origin == "b").error is None


def test_other_unreachable_links_are_counted() -> None:
    cut = [Link(origin=one, target="z", error=f"{one} is unreachable", remedy="fix it") for one in "cab"]
    with pytest.raises(UnreachablePeer, match=r"^a is unreachable; fix it \(2 more links are unreachable\)$"):
        require_reachable(cut)


def test_a_probe_is_accepted_or_refused() -> None:
    me = Prober("a", "127.0.0.1", "hello")
    with create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        require_listener(me, "b", "127.0.0.2", port, 1.0)
    with pytest.raises(
        PeerLost, match="connection refused: the process there probably exited; if not, open the gang ports"
    ):
        require_listener(me, "b", "127.0.0.2", port, 1.0)


def test_a_probe_that_gets_no_answer_times_out() -> None:
    """The queue is full, so that the kernel drops what comes, as a firewall does."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    with create_server(("127.0.0.2", 0), backlog=0) as full, ExitStack() as stack:
        address, port = full.getsockname()
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        with pytest.raises(UnreachablePeer, match=rf"can't reach node b at .*: timed out .*: {first} to {last}\)"):
            require_listener(Prober("a", "127.0.0.1", "hello"), "b", address, port, 0.5)
