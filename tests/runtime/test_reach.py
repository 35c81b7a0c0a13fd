"""The look at the ways between nodes: over real sockets, each node with a loopback address of its own."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_server
from threading import Thread
from time import monotonic

import pytest

from rolecall.runtime import reach
from rolecall.runtime.reach import Explorer, Listener, Way, explore, knock, require_open
from rolecall.spec.errors import PeerLost, UnreachablePeer

FAR = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""


@dataclass
class SharedBoard:
    """A board for nodes that are threads of this process; `swapped` puts words in a node's mouth."""

    nodes: tuple[str, ...]
    swapped: dict[tuple[str, str], str] = field(default_factory=dict)
    words: dict[tuple[str, str], str] = field(default_factory=dict)
    news: threading.Condition = field(default_factory=threading.Condition)

    def of(self, node: str) -> "NodesBoard":
        return NodesBoard(self, node)


@dataclass
class NodesBoard:
    """One node's view of it."""

    shared: SharedBoard
    node: str

    def post(self, topic: str, text: str) -> None:
        with self.shared.news:
            self.shared.words[topic, self.node] = self.shared.swapped.get((topic, self.node), text)
            self.shared.news.notify_all()

    def gather(self, topic: str) -> dict[str, str]:
        keys = {(topic, node) for node in self.shared.nodes}
        with self.shared.news:
            assert self.shared.news.wait_for(lambda: keys <= self.shared.words.keys(), timeout=20)
            return {node: self.shared.words[topic, node] for node in self.shared.nodes}


def look(
    addresses: dict[str, str], swapped: dict[tuple[str, str], str] | None = None, *, cut_only: bool = False
) -> list[list[Way]]:
    """What each node finds."""
    board = SharedBoard(tuple(addresses), swapped or {})
    explorers = [Explorer(node, address, "hello") for node, address in addresses.items()]
    with ThreadPoolExecutor(len(explorers)) as pool:
        return list(pool.map(lambda me: explore(me, board.of(me.node), cut_only=cut_only), explorers))


def listener(address: str, port: int | None, trouble: str | None = None) -> str:
    told = Listener(address=address, interface="eth9", ports="40000 to 49999", port=port, trouble=trouble)
    return told.model_dump_json()


def test_open_ways_are_found_open_in_both_directions() -> None:
    found = look({"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"})
    assert found[0] == found[1] == found[2]
    expected = {(one, other) for one in "abc" for other in "abc" if one != other}
    assert {(way.origin, way.target) for way in found[0]} == expected
    assert all(way.error is None and way.seconds is not None and way.seconds < reach.TRY_S for way in found[0])
    require_open(found[0])


def test_open_ways_need_not_be_told() -> None:
    swapped = {("listeners", "c"): listener("127.0.0.3", None, "it is on fire")}
    found = look({"a": "127.0.0.1", "b": "127.0.0.2", "c": "127.0.0.3"}, swapped, cut_only=True)
    assert found[0] == found[1] == found[2]
    assert {(way.origin, way.target) for way in found[0]} == {("a", "c"), ("b", "c")}


def test_one_node_has_no_ways() -> None:
    assert look({"a": "127.0.0.1"}) == [[]]


def test_a_closed_port_is_a_line_with_both_names_and_a_remedy() -> None:
    with create_server(("127.0.0.2", 0)) as gone:
        port = gone.getsockname()[1]
    found = look({"a": "127.0.0.1", "b": "127.0.0.2"}, {("listeners", "b"): listener("127.0.0.2", port)})
    assert found[0] == found[1]
    with pytest.raises(UnreachablePeer) as caught:
        require_open(found[0])
    assert str(caught.value) == (
        f"node a (127.0.0.1, lo) can't reach node b at 127.0.0.2:{port}: connection refused; open the gang ports "
        "(net.ipv4.ip_local_port_range: 40000 to 49999) between the nodes in both directions"
    )


def test_silence_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the connection, and nobody ever answers."""
    monkeypatch.setattr(reach, "TRY_S", 0.5)
    with create_server(("127.0.0.2", 0)) as mute:
        begin = monotonic()
        swapped = {("listeners", "b"): listener("127.0.0.2", mute.getsockname()[1])}
        found = look({"a": "127.0.0.1", "b": "127.0.0.2"}, swapped)[0]
    assert monotonic() - begin < 5
    assert "timed out after" in next(way.error or "" for way in found if way.origin == "a")


def test_who_does_not_know_the_secret_gets_no_answer() -> None:
    board = SharedBoard(("a", "b"), {})
    explorers = [Explorer("a", "127.0.0.1", "hello"), Explorer("b", "127.0.0.2", "good day")]
    with ThreadPoolExecutor(2) as pool:
        found, _ = pool.map(lambda me: explore(me, board.of(me.node)), explorers)
    assert all("it hangs up without a word" in (way.error or "") for way in found)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"x" * 100_000])
def test_a_stranger_on_the_port_is_noticed(said: bytes) -> None:
    def be_strange() -> None:
        connection, _ = stranger.accept()
        with connection:
            connection.recv(100)
            connection.sendall(said)

    with create_server(("127.0.0.2", 0)) as stranger:
        thread = Thread(target=be_strange)
        thread.start()
        swapped = {("listeners", "b"): listener("127.0.0.2", stranger.getsockname()[1])}
        found = look({"a": "127.0.0.1", "b": "127.0.0.2"}, swapped)[0]
        thread.join()
    cut = next(way for way in found if way.origin == "a")
    assert "somebody else answers there" in (cut.error or "")
    assert "an address of its own" in cut.remedy


def test_a_node_that_has_not_its_own_address_says_so() -> None:
    found = look({"a": "127.0.0.1", "b": FAR})[0]
    cut = next(way for way in found if way.origin == "a")
    assert cut.error == (
        f"node a (127.0.0.1, lo) can't reach node b at {FAR}: b can't listen at its own address "
        "(cannot assign requested address)"
    )
    assert next(way for way in found if way.origin == "b").error is None


def test_other_ways_that_are_cut_are_counted() -> None:
    cut = [Way(origin=one, target="z", error=f"{one} is cut off", remedy="mend it") for one in "cab"]
    with pytest.raises(UnreachablePeer, match=r"^a is cut off; mend it \(2 more ways are cut\)$"):
        require_open(cut)


def test_a_knock_is_heard_or_refused() -> None:
    me = Explorer("a", "127.0.0.1", "hello")
    with create_server(("127.0.0.2", 0)) as server:
        port = server.getsockname()[1]
        knock(me, "b", "127.0.0.2", port, 1.0)
    with pytest.raises(
        PeerLost, match="connection refused, so who listened there is gone; or else open the gang ports"
    ):
        knock(me, "b", "127.0.0.2", port, 1.0)


def test_a_knock_that_nobody_hears_is_given_up() -> None:
    """The queue is full, so that the kernel drops what comes, as a firewall does."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    with create_server(("127.0.0.2", 0), backlog=0) as full, ExitStack() as stack:
        address, port = full.getsockname()
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        with pytest.raises(UnreachablePeer, match=rf"can't reach node b at .*: timed out .*: {first} to {last}\)"):
            knock(Explorer("a", "127.0.0.1", "hello"), "b", address, port, 0.5)
