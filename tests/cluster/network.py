"""A cluster on machines of its own: network namespaces on one switch, whose wires a test may cut.

The control program and a trainer live in `hub`, an observer each in `left` and `right`; the test itself is a fourth on
the switch. All of it is gone afterwards.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.conftest import ROLECALL, TOKEN
from tests.prerequisites import require_namespaces, require_programs
from tests.running import Running

HUB, LEFT, RIGHT = "hub", "left", "right"
ADDRESSES = {HUB: "198.18.77.1", LEFT: "198.18.77.2", RIGHT: "198.18.77.3"}
OURS = "198.18.77.100"
"""From the range that RFC 2544 sets aside for tests of networks."""
PORT = 8080
FENCE_S = "11"
"""A little more than the time after which the master counts a node as lost."""
NODES = {"trainer-0": HUB, "observer-0": LEFT, "observer-1": RIGHT}


@dataclass
class Network:
    """The namespaces by place, and what runs there."""

    data: Path
    prefix: str = f"rc{os.getpid()}"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]])

    def namespace(self, place: str) -> str:
        return f"{self.prefix}{place}"

    def inside(self, place: str, *command: str, given: str | None = None) -> None:
        """Run a command in a place, to its end."""
        whole = ["ip", "netns", "exec", self.namespace(place), *command]
        subprocess.run(whole, input=given, text=True, check=True, capture_output=True)

    def start(self, place: str, program: str, name: str, **environment: str) -> None:
        """Start a program of Rolecall in a place."""
        own = {"ROLECALL_DATA": str(self.data / name), "ROLECALL_NODE_TOKEN": "the-nodes-token-of-the-tests"}
        command = ["ip", "netns", "exec", self.namespace(place), sys.executable, "-m", "rolecall", program]
        with (self.data / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, env=os.environ | own | environment, stdout=log, stderr=log)
        self.processes.append(process)

    @contextmanager
    def cut(self, place: str, *, from_address: str | None = None) -> Generator[None]:
        """No new TCP connection in or out, but to the control port: with everybody, or with one address."""
        there, here = (f"ip {field} {from_address} " if from_address else "" for field in ("daddr", "saddr"))
        opening = "tcp flags & (syn | ack) == syn"
        with self._filtered(place, f"{there}{opening} tcp dport != {PORT} drop", f"{here}{opening} drop"):
            yield

    @contextmanager
    def isolated(self, place: str) -> Generator[None]:
        """Nothing goes in or out, to nobody, as when a switch fails."""
        with self._filtered(place, "drop", "drop"):
            yield

    @contextmanager
    def narrowed(self, place: str) -> Generator[None]:
        """Drop what is large, both ways, but for the control port: a wrong MTU on the way does so."""
        large = "meta length > 1200 drop"
        with self._filtered(place, f"tcp dport != {PORT} {large}", f"tcp sport != {PORT} {large}"):
            yield

    @contextmanager
    def _filtered(self, place: str, leaving: str, coming: str) -> Generator[None]:
        """Under these rules of nftables, which spare loopback."""
        rules = f"""table inet filtered {{
            chain leaving {{
                type filter hook output priority 0
                oif lo accept
                {leaving}
            }}
            chain coming {{
                type filter hook input priority 0
                iif lo accept
                {coming}
            }}
        }}"""
        self.inside(place, "nft", "-f", "-", given=rules)
        try:
            yield
        finally:
            self.inside(place, "nft", "delete", "table", "inet", "filtered")

    def logs(self) -> str:
        """The end of every program's log."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in self.data.glob("*.log"))


@dataclass
class ApartCluster(Running):
    """A running cluster with every node on a machine of its own."""

    network: Network
    client: httpx.Client

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The `rolecall` command, as its user calls it."""
        environment = os.environ | {"ROLECALL_URL": str(self.client.base_url), "ROLECALL_TOKEN": TOKEN}
        command = [*ROLECALL, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)

    def logs(self) -> str:
        """The end of every program's log."""
        return self.network.logs()


@contextmanager
def apart_cluster(data: Path) -> Generator[ApartCluster]:
    """Build the network and start the cluster; skips the test where that is not possible."""
    with ExitStack() as stack:
        network = Network(data)
        stack.callback(_remove, network)
        _build(network)
        stack.callback(_stop, network)
        network.start(HUB, "master", "master", ROLECALL_TOKEN=TOKEN)
        for name, place in NODES.items():
            environment = {"MASTER_ADDR": ADDRESSES[HUB], "ROLE": name.rpartition("-")[0], "ROLECALL_NODE_NAME": name}
            room = {"ROLECALL_METRICS_PORT": "0", "ROLECALL_SLOTS": "1", "ROLECALL_CPU_SLOTS": str(len(NODES))}
            environment["ROLECALL_FENCE_S"] = FENCE_S
            network.start(place, "node", name, **environment, **room)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"http://{ADDRESSES[HUB]}:{PORT}"
        client = stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False))
        await_nodes(client, network)
        yield ApartCluster(network, client)


def _build(network: Network) -> None:
    require_namespaces("--net", "--mount")
    require_programs("ip", "nft")
    _remove_those_of_killed_tests()
    hub = network.namespace(HUB)
    for place in ADDRESSES:
        _ip("netns", "add", network.namespace(place))
        _ip("-n", network.namespace(place), "link", "set", "lo", "up")
    _ip("-n", hub, "link", "add", "switch", "type", "bridge")
    _ip("-n", hub, "address", "add", f"{ADDRESSES[HUB]}/24", "dev", "switch")
    _ip("-n", hub, "link", "set", "switch", "up")
    for place in (LEFT, RIGHT):
        _wire(network, place, ADDRESSES[place], "-n", network.namespace(place))
    _wire(network, "ours", OURS)


def _remove_those_of_killed_tests() -> None:
    """Delete the namespaces of test processes that were killed, with their wires: they use the same addresses."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    for name, pid in re.findall(rf"^(rc(\d+)(?:{HUB}|{LEFT}|{RIGHT}))\b", listed, re.MULTILINE):
        if not Path(f"/proc/{pid}").exists():
            _ip("netns", "delete", name)


def _wire(network: Network, name: str, address: str, *where: str) -> None:
    """A wire from the switch to a place, or without one to the test's own namespace."""
    device = f"{network.prefix}w" if not where else "eth0"
    _ip(*where, "link", "add", device, "type", "veth", "peer", "name", name, "netns", network.namespace(HUB))
    _ip("-n", network.namespace(HUB), "link", "set", name, "master", "switch", "up")
    _ip(*where, "address", "add", f"{address}/24", "dev", device)
    _ip(*where, "link", "set", device, "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def await_nodes(client: httpx.Client, network: Network) -> None:
    deadline = time.monotonic() + 90
    while _alive(client) != set(NODES):
        assert time.monotonic() < deadline, network.logs()
        time.sleep(0.1)


def _alive(client: httpx.Client) -> set[str]:
    with suppress(httpx.TransportError):
        return {node["spec"]["name"] for node in client.get("/nodes").json()["nodes"] if node["alive"]}
    return set()


def _stop(network: Network) -> None:
    for process in reversed(network.processes):
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def _remove(network: Network) -> None:
    for place in ADDRESSES:
        subprocess.run(["ip", "netns", "delete", network.namespace(place)], capture_output=True, check=False)
