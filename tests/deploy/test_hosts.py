"""`compose.hosts.yaml`: a gang over two machines, each with its own network.

A machine is a container that sleeps; all others of that machine run in its network, as they would in that of a host.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from tests.cluster.jobs import workers
from tests.deploy.manifests import ROOT
from tests.deploy.stack import Stack, docker, image

from rolecall.spec.role import Role

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOSTS = ROOT / "compose.hosts.yaml"
NETWORK = "rolecall-test-hosts"
MACHINES = ("alpha", "beta")
TOKEN, NODE_TOKEN = "a-token-for-the-tests-only", "a-node-token-for-the-tests-only"
PORTS = "net.ipv4.ip_local_port_range=40000 49999"


@pytest.fixture
def machines(images: None) -> Iterator[dict[str, str]]:
    """The address of each machine, by name."""
    with ExitStack() as undo:
        docker("network", "create", NETWORK)
        undo.callback(docker, "network", "rm", NETWORK)
        for name in MACHINES:
            sleeping = ("--entrypoint", "sleep", image("observer"), "infinity")
            docker("run", "--detach", "--name", _host(name), "--network", NETWORK, "--sysctl", PORTS, *sleeping)
            undo.callback(docker, "rm", "--force", "--volumes", _host(name))
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        yield {name: docker("inspect", "--format", address, _host(name)).strip() for name in MACHINES}


def test_a_gang_over_two_machines(machines: dict[str, str], tmp_path: Path) -> None:
    with (
        _machine("alpha", machines["alpha"], tmp_path, "master", "parameter-server", "trainer") as alpha,
        _machine("beta", machines["alpha"], tmp_path, "trainer"),
    ):
        alpha.client = httpx.Client(base_url=f"http://{machines['alpha']}:8080", timeout=30)
        alpha.client.headers["Authorization"] = f"Bearer {TOKEN}"
        nodes = alpha.nodes(Role.TRAINER)
        assert {name: node["spec"]["address"] for name, node in nodes.items()} == {
            f"trainer-{name}": machines[name] for name in MACHINES
        }
        alpha.compose("exec", "-T", "master", "rolecall", "doctor")
        example = (ROOT / "examples/embedding-ddp.json").read_text()
        job = alpha.submit(yaml.safe_load(example))
        placed = workers(alpha.wait_for(job, "succeeded", 300))
        assert {worker["node"] for name, worker in placed.items() if name.startswith("trainer")} == set(nodes)


@contextmanager
def _machine(name: str, master: str, folder: Path, *roles: str) -> Iterator[Stack]:
    """These roles on one machine, up and healthy."""
    override = folder / f"{name}.yaml"
    network = {"network_mode": f"container:{_host(name)}"}
    override.write_text(yaml.safe_dump({"services": {role.value: network for role in Role}}))
    variables = {"MASTER_ADDR": master, "MACHINE": name, "ROLECALL_NODE_TOKEN": NODE_TOKEN, "ROLECALL_TOKEN": TOKEN}
    stack = Stack(variables | {"ROLECALL_SLOTS": "1"}, HOSTS, override, project=f"rolecall-test-{name}")
    try:
        stack.compose("up", "--detach", "--wait", *roles)
        yield stack
    finally:
        assert stack.down()[1] == {}


def _host(name: str) -> str:
    return f"rolecall-test-host-{name}"
