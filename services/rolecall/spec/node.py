"""What a node is and what it offers."""

from hashlib import sha256
from ipaddress import ip_address

from pydantic import Field

from rolecall.spec.finding import Finding, Level
from rolecall.spec.model import Value
from rolecall.spec.role import Role


class Gpu(Value):
    """One GPU of a machine, by the identity that no container renumbers."""

    uuid: str
    name: str
    memory_bytes: int = Field(ge=0)


class Machine(Value):
    """The machine below a container. Nodes with the same `boot_id` share its GPUs, and its cores if not exclusive."""

    boot_id: str
    """The kernel's random id of this boot: equal in all containers of one machine, different on every other."""
    hostname: str
    cores: int = Field(ge=1)
    """Cores that the cgroup and the affinity mask leave."""
    cpu_slots: int = Field(ge=1)
    """In how many equal shares the cores are given out."""
    memory_bytes: int = Field(ge=0)
    gpus: tuple[Gpu, ...] = ()
    exclusive: bool = False
    """Whether the cores are this container's alone: a quota gives it fewer than the machine has."""


class NodeDescription(Value):
    """What a node is, as users see it."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")
    """Unique in the cluster, e.g. `trainer-0`; a container's host name by default."""
    role: Role
    slots: int = Field(ge=1)
    """Workers of its role that it takes at once."""
    address: str
    """Where the workers of other nodes reach this node's workers: the source address of its route to the master."""
    interface: str
    """The network interface that bears `address`."""
    network_namespace: str = ""
    """The kernel's id of its network namespace: only within one do nodes of one machine share the loopback address."""
    metrics_port: int = Field(ge=0, le=65535)
    machine: Machine
    version: str

    @property
    def loopback_of(self) -> str | None:
        """Where alone its address is good: in this network namespace of this machine; None when it leads further."""
        return f"{self.machine.boot_id}/{self.network_namespace}" if is_loopback(self.address) else None


class NodeSpec(NodeDescription):
    """What a node tells the master when it registers."""

    started: str
    """A random id of this daemon's life, so that the master can tell a restarted node from a late message. Users don't
    see it: with a node's token, who knows it could speak for the node."""


class _NodeLife(Value):
    alive: bool
    draining: bool = False
    heartbeat_age_s: float
    findings: tuple[Finding, ...] = ()
    """What it found when it last examined itself."""

    @property
    def obstacle(self) -> str | None:
        """Why it takes no new worker although it is alive; None when it takes some."""
        if self.draining:
            return "it is draining"
        return next((finding.message for finding in self.findings if finding.level is Level.ERROR), None)


class NodeState(_NodeLife):
    """A node as the master sees it."""

    spec: NodeSpec

    @property
    def life(self) -> str:
        """What users may know of `NodeSpec.started`, which guards the node's heartbeats."""
        return sha256(self.spec.started.encode()).hexdigest()[:12]


class NodeDocument(_NodeLife):
    """A node as `GET /nodes` shows it."""

    spec: NodeDescription
    life: str = ""
    """A fingerprint of the daemon's life, which changes when the node restarts."""


def is_loopback(address: str) -> bool:
    """Whether `address` leads no further than to the network namespace that asks."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
