"""The roles of nodes and workers."""

from enum import StrEnum
from fractions import Fraction


class Role(StrEnum):
    """The role for which a node offers slots, and the role of a worker in its gang."""

    MASTER = "master"
    PARAMETER_SERVER = "parameter-server"
    TRAINER = "trainer"
    STAGE = "stage"
    OBSERVER = "observer"

    @property
    def module(self) -> str:
        """The module of a workload that implements this role, such as `parameter_server`."""
        return self.value.replace("-", "_")

    @property
    def computes(self) -> bool:
        """True if this role keeps a core or a GPU busy; the others mostly wait for calls."""
        return self in _COMPUTING

    @property
    def weight(self) -> Fraction:
        """The share of a CPU slot that one worker of this role takes."""
        return Fraction(1) if self.computes else Fraction(1, 8)


_COMPUTING = frozenset({Role.TRAINER, Role.STAGE, Role.OBSERVER})

# Ranks are assigned in this order, so that rank 0, which hosts the rendezvous, has the role that lives longest.
RANK_ORDER = (Role.MASTER, Role.PARAMETER_SERVER, Role.STAGE, Role.TRAINER, Role.OBSERVER)
