"""All pairs of nodes, round by round, in a bounded time even if calls stall."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rolecall.network.findings import SpeedBounds, classify_speed, cut_short, left_out, stalled
from rolecall.network.pairs import Pair, Speed, blamed, rounds
from rolecall.spec.finding import NodeFinding

CALL_S = 10.0
"""A call that takes longer counts as stalled."""
GRACE_S = 4 * CALL_S
"""No round starts later than this after the planned end: enough for a few stalls, not for one of each node."""
Meter = Callable[[Sequence[Pair], float], Iterable[Speed | str]]
"""Measures pairs concurrently, each in about the given seconds: the speed of each, or the error of RPC in one line."""


@dataclass
class Survey:
    """The measurements of a gang, from its first round to its last."""

    nodes: Sequence[str]
    measure_s: float
    """The planned time for all measurements."""
    bounds: SpeedBounds
    meter: Meter
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _stalls: list[Pair] = field(default_factory=list[Pair], init=False)
    _skipped: list[Pair] = field(default_factory=list[Pair], init=False)

    def findings(self) -> Iterator[NodeFinding]:
        """The findings of each pair, then the pairs that were not measured, with the reason."""
        plan = [[(self.nodes[a], self.nodes[b]) for a, b in pairs] for pairs in rounds(len(self.nodes))]
        begin, done = self.clock(), 0
        while done < len(plan) and self.clock() - begin <= self.measure_s + GRACE_S:
            yield from self._round(plan[done], self.measure_s / len(plan))
            done += 1
            self.report(f"measured {done} of {len(plan)} rounds of pairs")
        yield from self._unmeasured(plan, done, self.clock() - begin)

    def _round(self, pairs: Sequence[Pair], budget_s: float) -> Iterator[NodeFinding]:
        """Measure those pairs of a round of which neither node is known to stall."""
        guilty = blamed(self._stalls).keys()
        due = [pair for pair in pairs if guilty.isdisjoint(pair)]
        self._skipped += [pair for pair in pairs if not guilty.isdisjoint(pair)]
        for pair, speed in zip(due, self.meter(due, budget_s), strict=True):
            if isinstance(speed, Speed):
                yield from classify_speed(pair, speed, self.bounds)
            else:
                self._stalls.append(pair)
                yield stalled(pair, speed)

    def _unmeasured(self, plan: Sequence[Sequence[Pair]], done: int, took_s: float) -> Iterator[NodeFinding]:
        guilty = blamed(self._stalls)
        missing = [*self._skipped, *(pair for pairs in plan[done:] for pair in pairs)]
        yield from left_out(missing, guilty)
        if left := [pair for pair in missing if guilty.keys().isdisjoint(pair)]:
            yield cut_short(left, sum(map(len, plan)), took_s, guilty)
