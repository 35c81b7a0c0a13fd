"""The parts that a process can play."""

from enum import StrEnum
from fractions import Fraction


class Role(StrEnum):
    """A role is data and not a program: a node offers slots for one role, a worker plays one role."""

    MASTER = "master"
    PARAMETER_SERVER = "parameter-server"
    TRAINER = "trainer"
    STAGE = "stage"
    OBSERVER = "observer"

    @property
    def module(self) -> str:
        """The file of a workload that plays this role, e.g. `parameter_server`."""
        return self.value.replace("-", "_")

    @property
    def computes(self) -> bool:
        """Whether this role keeps a core or a GPU busy; the others mostly wait for calls."""
        return self in _COMPUTING

    @property
    def weight(self) -> Fraction:
        """The share of a CPU slot that one worker of this role takes."""
        return Fraction(1) if self.computes else Fraction(1, 8)


_COMPUTING = frozenset({Role.TRAINER, Role.STAGE, Role.OBSERVER})

# Ranks are given out in this order, so that rank 0 (where the gang meets) is the role that lives longest.
RANK_ORDER = (Role.MASTER, Role.PARAMETER_SERVER, Role.STAGE, Role.TRAINER, Role.OBSERVER)
