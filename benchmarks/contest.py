"""Contenders, their runs, and the interleaved rounds."""

import statistics
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Run:
    """The measurements of one run of a contender, in its steady state."""

    rate: float
    """Units per second."""
    step_ms: float
    cpu_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    """CPU milliseconds per step, by process."""
    peak_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Largest resident memory, by process."""
    anonymous_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """The part of it that is no file: the largest anonymous memory, by process."""
    private_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """The part of that which no other process has: workers share the modules that their fork server has imported."""
    seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict[str, Mapping[str, float]])
    """Seconds of all steps by activity of the main thread, by process."""
    bubble: float | None = None
    """The measured share of the stages' time without computation."""
    bubble_theory: float | None = None
    """The same for equal stages and instant communication."""
    bubble_simulated: float | None = None
    """The same for the measured passes of each stage and instant communication."""
    first_step_s: float = 0.0
    """Seconds from the start of the processes to the end of the first step, without the import of torch."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the same work."""

    name: str
    run: Callable[[Path], Run]
    """Runs once in an empty folder."""
    is_limit: bool = False
    """True for the contender that the others are compared with."""


@dataclass(frozen=True, slots=True)
class Goal(ABC):
    """A figure that a contender should reach."""

    contender: str

    @property
    @abstractmethod
    def text(self) -> str:
        """The goal, in a phrase."""

    @abstractmethod
    def measure(self, result: "Result") -> float: ...

    @abstractmethod
    def is_reached(self, measured: float) -> bool: ...

    @abstractmethod
    def figure(self, measured: float) -> str:
        """The measured value with its unit."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The least that a step has to compute and to move, whatever the contender."""

    units: float
    """The units of the step."""
    flops: float
    bytes: float
    """Bytes that are read or written."""
    derivation: str
    """The origin of these numbers, in a phrase."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A benchmark: contenders for the same work."""

    title: str
    unit: str
    work: str
    """The work, in a sentence."""
    contenders: Sequence[Contender]
    goals: Sequence[Goal] = ()
    floor: Floor | None = None
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Result:
    """All runs of a contest, by contender."""

    contest: Contest
    runs: Mapping[str, Sequence[Run]]

    def median(self, name: str) -> Run:
        """The run with the median rate; with an even number of runs the slower one of the two in the middle."""
        ordered = sorted(self.runs[name], key=lambda run: run.rate)
        return ordered[(len(ordered) - 1) // 2]

    def ratio(self, name: str, other: str) -> float:
        """The median over the rounds of the ratio of two rates: what drifts from round to round cancels out."""
        return statistics.median(
            mine.rate / theirs.rate for mine, theirs in zip(self.runs[name], self.runs[other], strict=True)
        )


def hold(contest: Contest, rounds: int | None = None) -> Result:
    """Run all contenders once per round, in an order that turns by one from round to round."""
    runs: dict[str, list[Run]] = {contender.name: [] for contender in contest.contenders}
    for number in range(rounds or contest.rounds):
        turn = number % len(contest.contenders)
        for contender in [*contest.contenders[turn:], *contest.contenders[:turn]]:
            begin_s = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
                run = contender.run(Path(folder))
            runs[contender.name].append(run)
            took_s = time.monotonic() - begin_s
            what = f"{contest.title}, round {number + 1}: {contender.name}"
            print(f"{what} {run.rate:,.1f} {contest.unit}/s ({took_s:.0f} s)", file=sys.stderr, flush=True)
    return Result(contest, runs)
