"""What a node is and what it offers."""

from pydantic import Field

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


class NodeSpec(Value):
    """What a node tells the master when it registers."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")
    """Unique in the cluster, e.g. `trainer-0`; a container's host name by default."""
    role: Role
    slots: int = Field(ge=1)
    """Workers of its role that it takes at once."""
    address: str
    """Where the workers of other nodes reach this node's workers: the source address of its route to the master."""
    interface: str
    """The network interface that bears `address`."""
    metrics_port: int = Field(ge=0, le=65535)
    machine: Machine
    version: str
    started: str
    """A random id of this daemon's life, so that the master can tell a restarted node from a late message."""


class NodeState(Value):
    """A node as the master sees it."""

    spec: NodeSpec
    alive: bool
    draining: bool = False
    heartbeat_age_s: float
