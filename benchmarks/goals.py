"""Goals of a contest: rates, bubbles and memory."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from benchmarks.contest import Goal, Result
from rolecall.spec.role import Role

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class RateGoal(Goal):
    """A contender's rate must be at least `factor` times that of another one."""

    factor: float
    other: str

    @property
    def text(self) -> str:
        return f"{self.contender}: at least {self.factor:g} times the rate of {self.other}"

    def measure(self, result: Result) -> float:
        return result.ratio(self.contender, self.other)

    def is_reached(self, measured: float) -> bool:
        return measured >= self.factor

    def figure(self, measured: float) -> str:
        return f"{measured:.2f}"


@dataclass(frozen=True, slots=True)
class BubbleGoal(Goal):
    """A contender's measured bubble must be at most `points` percentage points above the one without communication."""

    points: float
    stages: Literal["equal", "measured"] = "equal"
    """The stages of the bubble without communication: with equal passes, or with those that were measured."""

    @property
    def text(self) -> str:
        return f"{self.contender}: a bubble at most {self.points:g} points above theory for {self.stages} stages"

    def measure(self, result: Result) -> float:
        """The median over the rounds of the bubble's difference to theory, in percentage points."""
        pairs = [
            (run.bubble, run.bubble_theory if self.stages == "equal" else run.bubble_simulated)
            for run in result.runs[self.contender]
        ]
        return 100 * statistics.median(
            bubble - theory for bubble, theory in pairs if bubble is not None and theory is not None
        )

    def is_reached(self, measured: float) -> bool:
        return measured <= self.points

    def figure(self, measured: float) -> str:
        return f"{measured:+.1f}"


@dataclass(frozen=True, slots=True)
class MemoryGoal(Goal):
    """The private memory of each worker of a role must be at most `excess` more than what it has to store."""

    role: Role
    stored_bytes: float
    """The bytes that a worker has to store."""
    stored: str
    """The same in words."""
    excess: float

    @property
    def text(self) -> str:
        limit = f"{self._limit_bytes / _MIB:,.0f} MiB, {self.stored} + {self.excess:.0%}"
        return f"{self.contender}: a private memory of each {self.role} of at most {limit}"

    def measure(self, result: Result) -> float:
        """The largest private memory of a worker in any round, in bytes."""
        return max(max(private_bytes) for private_bytes in _of_role(result, self.contender, self.role))

    def is_reached(self, measured: float) -> bool:
        return measured <= self._limit_bytes

    def figure(self, measured: float) -> str:
        return f"{measured / _MIB:,.0f} MiB"

    @property
    def _limit_bytes(self) -> float:
        return (1 + self.excess) * self.stored_bytes


@dataclass(frozen=True, slots=True)
class MemoryShareGoal(Goal):
    """The private memory of each worker of a role must be at most `share` of that of a contender in one process."""

    role: Role
    share: float
    other: str

    @property
    def text(self) -> str:
        return f"{self.contender}: a private memory of each {self.role} of at most {self.share:g} times {self.other}"

    def measure(self, result: Result) -> float:
        """The largest share in any round."""
        whole = [sum(run.private_bytes.values()) for run in result.runs[self.other]]
        parts = _of_role(result, self.contender, self.role)
        return max(max(part) / one for part, one in zip(parts, whole, strict=True))

    def is_reached(self, measured: float) -> bool:
        return measured <= self.share

    def figure(self, measured: float) -> str:
        return f"{measured:.2f}"


def _of_role(result: Result, contender: str, role: Role) -> Iterator[list[int]]:
    """The private memory of each worker of a role, by round."""
    for run in result.runs[contender]:
        yield [size for name, size in run.private_bytes.items() if name.startswith(f"{role}-")]
