"""Nodes and their machines."""

import math
from hashlib import sha256
from ipaddress import ip_address

from pydantic import AliasChoices, Field, computed_field

from rolecall.spec.finding import Finding, Level
from rolecall.spec.model import Value
from rolecall.spec.role import Role
from rolecall.spec.state import WorkerState


class Gpu(Value):
    """One GPU of a machine, or one slice of it (MIG). Its `uuid` is the same in all containers, unlike its index."""

    uuid: str
    name: str
    memory_bytes: int = Field(ge=0)
    parent: str | None = None
    """The UUID of the GPU whose slice this is; None for a whole GPU."""

    @property
    def whole(self) -> str:
        """The UUID of the whole GPU."""
        return self.parent or self.uuid


class Machine(Value):
    """The machine that runs a node. Nodes with the same `boot_id` share its GPUs, and its cores unless `exclusive`."""

    boot_id: str
    """The kernel's random id of this boot: the same in all containers of a machine, and unique to the machine."""
    hostname: str
    cores: int = Field(ge=1)
    """The number of cores that the cgroup and the affinity mask allow."""
    cpu_slots: int = Field(ge=1)
    """The number of equal shares into which the cores are divided."""
    memory_bytes: int = Field(ge=0)
    gpus: tuple[Gpu, ...] = ()
    workers_per_gpu: int = Field(default=1, ge=1)
    """The number of workers that can use one of its GPUs at the same time."""
    exclusive: bool = False
    """True if the container doesn't share its cores, because its quota is smaller than the machine."""

    @property
    def threads_per_slot(self) -> int:
        """The number of threads of a worker with one CPU slot."""
        return max(1, self.cores // self.cpu_slots)

    def capacity(self, role: Role) -> int:
        """The number of parallel workers of a role: on its GPUs, and on its CPU slots if they ask for no GPU."""
        return len(self.gpus) * self.workers_per_gpu + int(self.cpu_slots / role.weight)

    def slots_of(self, threads: int) -> int:
        """The number of CPU slots whose cores a worker with this many threads needs."""
        return max(1, math.ceil(threads * self.cpu_slots / max(self.cores, self.cpu_slots)))


class NodeDescription(Value):
    """The properties of a node that users can see."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")
    """Unique in the cluster, such as `trainer-0`; by default the container's host name."""
    role: Role
    slots: int = Field(ge=1)
    """The maximum number of workers of its role at the same time."""
    address: str
    """The address of this node's workers for other nodes: the source address of its route to the master."""
    interface: str
    """The network interface with `address`."""
    network_namespace: str = ""
    """The kernel's id of its network namespace. Only nodes in the same namespace share the loopback address."""
    metrics_port: int = Field(ge=0, le=65535)
    machine: Machine
    version: str

    @property
    def loopback_of(self) -> str | None:
        """The only network namespace in which a loopback address is reachable; None for other addresses."""
        return f"{self.machine.boot_id}/{self.network_namespace}" if is_loopback(self.address) else None


class NodeSpec(NodeDescription):
    """The description that a node registers with the master."""

    started: str
    """A random id of the daemon's process, with which the master distinguishes a restarted node from a late message. It
    is hidden from users, because in combination with the node token it would allow them to impersonate the node."""


class _NodeStatus(Value):
    alive: bool
    draining: bool = False
    heartbeat_age_s: float
    findings: tuple[Finding, ...] = ()
    """The results of its latest self-check."""

    @property
    def obstacle(self) -> str | None:
        """The reason why a live node accepts no new workers, or None."""
        if self.draining:
            return "it is draining"
        return next((finding.message for finding in self.findings if finding.level is Level.ERROR), None)


class NodeState(_NodeStatus):
    """A node in the master's view."""

    spec: NodeSpec

    @property
    def incarnation(self) -> str:
        """A fingerprint of `NodeSpec.started` for users, who must not know the id itself."""
        return sha256(self.spec.started.encode()).hexdigest()[:12]


class Occupant(Value):
    """A worker that occupies a slot of a node."""

    job: str | None
    """Null for a job that the token can't see."""
    role: Role
    role_rank: int
    state: WorkerState


class NodeDocument(_NodeStatus):
    """A node in `GET /nodes`."""

    spec: NodeDescription
    incarnation: str = Field(default="", validation_alias=AliasChoices("incarnation", "life"))
    """A fingerprint of the daemon's process, which changes when the node restarts."""
    workers: tuple[Occupant, ...] = ()
    """The workers on this node that have not ended."""

    @computed_field(json_schema_extra={"deprecated": True})
    @property
    def life(self) -> str:
        """The name of `incarnation` in release 0.1. Deprecated; the next release removes it."""
        return self.incarnation


def is_loopback(address: str) -> bool:
    """Return whether `address` is reachable only in its own network namespace."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"
