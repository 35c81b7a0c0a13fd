"""`compose.hosts.yaml`: a gang over two machines, each with its own network.

A machine is a container that sleeps; all others of that machine run in its network, as they would in that of a host.
Its firewall has the rules that the document gives.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.cluster.jobs import workers
from tests.deploy.manifests import ROOT, program
from tests.deploy.stack import START_S, Stack, docker, image
from tests.prerequisites import unavailable

from rolecall.spec.role import Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOSTS = ROOT / "compose.hosts.yaml"
NETWORK = "rolecall-test-hosts"
MACHINES = ("alpha", "beta")
TOKEN, NODE_TOKEN = "a-token-for-the-tests-only", "a-node-token-for-the-tests-only"
OUTSIDER = "outsider"
SUBNET = "10.0.0.0/24"
RULES = re.findall(r"^ *```nft\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL | re.MULTILINE)
ELSEWHERE = 8000
"""The outsider's port, which is none of the machines' own."""
PORTS = "net.ipv4.ip_local_port_range=40000 49999"


@pytest.fixture
def addresses(images: None) -> Iterator[dict[str, str]]:
    """The address of each machine by name, and of an outsider on their network; firewalls are up."""
    # An interrupted run may have left its own.
    docker("rm", "--force", "--volumes", *(_host(name) for name in (*MACHINES, OUTSIDER)))
    docker("network", "rm", "--force", NETWORK)
    with ExitStack() as undo:
        docker("network", "create", NETWORK)
        undo.callback(docker, "network", "rm", NETWORK)
        for name in (*MACHINES, OUTSIDER):
            serving = f"exec python3 -m http.server {ELSEWHERE}" if name == OUTSIDER else "exec sleep infinity"
            command = ("--entrypoint", "sh", image("observer"), "-c", serving)
            docker("run", "--detach", "--name", _host(name), "--network", NETWORK, "--sysctl", PORTS, *command)
            undo.callback(docker, "rm", "--force", "--volumes", _host(name))
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        found = {name: _inspect(name, address) for name in (*MACHINES, OUTSIDER)}
        # The test itself calls from the network's gateway.
        gateway = _inspect(MACHINES[0], "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}")
        for name in MACHINES:
            _close(name, [*(found[machine] for machine in MACHINES), gateway])
        yield found


def test_a_gang_over_two_machines(addresses: dict[str, str], tmp_path: Path) -> None:
    alpha_address = addresses["alpha"]
    with (
        # One binds its own address alone, the other all of its.
        _machine(
            "alpha", alpha_address, tmp_path, "master", "parameter-server", "trainer", ROLECALL_HOST=alpha_address
        ) as alpha,
        _machine("beta", alpha_address, tmp_path, "trainer"),
    ):
        alpha.client = httpx.Client(base_url=f"http://{alpha_address}:8080", timeout=30)
        alpha.client.headers["Authorization"] = f"Bearer {TOKEN}"
        nodes = _registered(alpha)
        assert {name: node["spec"]["address"] for name, node in nodes.items()} == {
            f"trainer-{name}": addresses[name] for name in MACHINES
        }
        alpha.compose("exec", "-T", "master", "rolecall", "doctor")
        example = json.loads((ROOT / "examples/embedding-ddp.json").read_text())
        job = alpha.submit(example | {"params": example["params"] | {"max_steps": 50}})
        placed = workers(alpha.wait_for(job, "succeeded", 300))
        assert {worker["node"] for name, worker in placed.items() if name.startswith("trainer")} == set(nodes)
        _check_firewalls(addresses)


def _registered(stack: Stack) -> dict[str, dict[str, Any]]:
    """The trainers, once there is one of each machine: healthy ones register when they have imported torch."""
    deadline = time.monotonic() + START_S
    while len(nodes := stack.nodes(Role.TRAINER)) < len(MACHINES):
        assert time.monotonic() < deadline, f"not all nodes have registered:\n{stack.logs()}"
        time.sleep(0.2)
    return nodes


def _check_firewalls(addresses: dict[str, str]) -> None:
    """Machines reach each other and what is elsewhere; an outsider reaches none of their ports."""
    listening = [("alpha", 8080), ("alpha", 9102), ("beta", 9102)]
    for name, port in listening:
        assert _connect(OUTSIDER, addresses[name], port) == "TimeoutError"
        assert _connect("beta", addresses[name], port) == "connected"
    for name in MACHINES:
        assert _connect(name, addresses[OUTSIDER], ELSEWHERE) == "connected"
    # What is closed is named, and nothing else: the refusal is the machine's own.
    assert _connect(OUTSIDER, addresses["alpha"], 22) == "ConnectionRefusedError"


def _connect(name: str, address: str, port: int) -> str:
    """The result of a call from this machine to that port, answered over HTTP or not."""
    call = f"""
from http.client import HTTPConnection
try:
    connection = HTTPConnection("{address}", {port}, timeout=3)
    connection.request("GET", "/healthz")
    connection.getresponse()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""
    return docker("exec", _host(name), "python3", "-c", call).strip()


def _close(name: str, members: list[str]) -> None:
    """Load the document's rules into a machine's network, with these addresses for its subnet."""
    if os.geteuid() != 0:
        unavailable("only root may enter a container's network")
    (rules,) = RULES
    assert rules.count(SUBNET) == 1
    subprocess.run(
        [program("nsenter"), "--target", _inspect(name, "{{.State.Pid}}"), "--net", program("nft"), "--file", "-"],
        input=rules.replace(SUBNET, f"{{ {', '.join(members)} }}"),
        check=True,
        text=True,
    )


def _inspect(name: str, template: str) -> str:
    return docker("inspect", "--format", template, _host(name)).strip()


@contextmanager
def _machine(name: str, master: str, folder: Path, *roles: str, **more: str) -> Generator[Stack]:
    """These roles on one machine, up and healthy."""
    override = folder / f"{name}.yaml"
    network = {"network_mode": f"container:{_host(name)}"}
    override.write_text(yaml.safe_dump({"services": {role.value: network for role in Role}}))
    variables = {"MASTER_ADDR": master, "MACHINE": name, "ROLECALL_NODE_TOKEN": NODE_TOKEN, "ROLECALL_TOKEN": TOKEN}
    stack = Stack(variables | {"ROLECALL_SLOTS": "1"} | more, HOSTS, override, project=f"rolecall-test-{name}")
    stack.remove()
    try:
        stack.compose("up", "--detach", "--wait", *roles)
        yield stack
    finally:
        assert stack.down()[1] == {}


def _host(name: str) -> str:
    return f"rolecall-test-host-{name}"
