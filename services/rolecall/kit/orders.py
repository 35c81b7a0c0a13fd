"""The orders in which torch's pipeline schedules compute, without torch, for pictures and plans.

The same tasks as in `torch.distributed.pipelining` 2.11 to 2.14, which tests compare.
"""

from collections import Counter
from collections.abc import Iterator

from rolecall.kit.pipelining import Kind, Task, fill_and_drain, one_forward_one_backward
from rolecall.kit.schedules import SCHEDULES, ScheduleName, stages_of


def planned_order(name: ScheduleName, ranks: int, micro_batches: int, virtual_stages: int) -> list[list[Task]]:
    """Each rank's tasks in order. The numbers must be valid for the schedule (see `SCHEDULES`)."""
    if name == "GPipe":
        return fill_and_drain(ranks, micro_batches)
    if name == "1F1B":
        return one_forward_one_backward(ranks, micro_batches)
    order: list[list[Task]] = []
    for rank in range(ranks):
        stages = stages_of(rank, ranks, virtual_stages, SCHEDULES[name].placement)
        match name:
            case "LoopedBFS":
                tasks = _breadth_first(stages, micro_batches)
            case "ZBVZeroBubble":
                # Planned for as many micro-batches as fill it; the excess is left out.
                planned = _zero_bubble_v(rank, ranks, stages, max(2 * ranks - 1, micro_batches))
                tasks = [task for task in planned if task.micro_batch < micro_batches]
            case "DualPipeV":
                tasks = _DualPipeV(rank, ranks, stages).tasks(micro_batches)
            case _:
                zero_bubble = name == "InterleavedZeroBubble"
                tasks = _interleaved(rank, ranks, stages, micro_batches, zero_bubble=zero_bubble)
        order.append(list(tasks))
    return order


def _breadth_first(stages: list[int], micro_batches: int) -> Iterator[Task]:
    """All micro-batches through one stage after the other (Lamy-Poirier, 2022)."""
    for stage in stages:
        yield from (Task(stage, "F", number) for number in range(micro_batches))
    for stage in reversed(stages):
        yield from (Task(stage, "B", number) for number in reversed(range(micro_batches)))


def _interleaved(rank: int, ranks: int, stages: list[int], micro_batches: int, *, zero_bubble: bool) -> Iterator[Task]:
    """Interleaved 1F1B (Narayanan et al., 2021), or with split backward passes (Qi et al., 2023).

    A stage takes the micro-batches of a round before the next stage of the rank does. Weights' gradients are computed
    as many backward passes later as the rank has predecessors.
    """
    rounds = max(1, micro_batches // ranks)
    per_round = micro_batches // rounds
    count = len(stages) * micro_batches
    hops = (1 if zero_bubble else 2) * (ranks - 1 - rank)
    ahead = min((len(stages) - 1) * per_round + hops, count)
    forward = _in_rounds(stages, "F", per_round, count)
    backward = _in_rounds(stages[::-1], "I" if zero_bubble else "B", per_round, count)
    yield from forward[:ahead]
    for place, task in enumerate(backward):
        yield from forward[ahead + place : ahead + place + 1]
        yield task
        if zero_bubble and place >= rank:
            yield backward[place - rank]._replace(kind="W")
    if zero_bubble:
        yield from (task._replace(kind="W") for task in backward[max(0, count - rank) :])


def _in_rounds(stages: list[int], kind: Kind, per_round: int, count: int) -> list[Task]:
    """The first `count` tasks of one kind: each stage in turn takes `per_round` micro-batches."""
    counts = _Counts()
    return [counts.next(stages[place // per_round % len(stages)], kind) for place in range(count)]


class _Counts(Counter[tuple[int, Kind]]):
    """The micro-batches so far of each stage and kind."""

    def next(self, stage: int, kind: Kind) -> Task:
        self[stage, kind] += 1
        return Task(stage, kind, self[stage, kind] - 1)


def _zero_bubble_v(rank: int, ranks: int, stages: list[int], micro_batches: int) -> Iterator[Task]:
    """Zero bubble in a V (Qi et al., 2023)."""
    down, up = stages
    counts = _Counts()
    for _ in range(2 * (ranks - rank) - 1):
        yield counts.next(down, "F")
    for _ in range(rank):
        yield from (counts.next(up, "F"), counts.next(down, "F"))
    for _ in range(ranks - rank):
        yield from (counts.next(up, kind) for kind in ("F", "I", "W"))
    while counts[up, "F"] < counts[down, "F"] or counts[down, "F"] < micro_batches:
        if counts[down, "F"] < micro_batches:
            yield counts.next(down, "F")
        yield from (counts.next(down, "I"), counts.next(down, "W"))
        yield from (counts.next(up, kind) for kind in ("F", "I", "W"))
    for _ in range(rank):
        yield from (counts.next(down, "I"), counts.next(up, "I"))
    for _ in range(ranks - rank):
        yield from (counts.next(down, "I"), counts.next(down, "W"))
    for stage in (up, down):
        while counts[stage, "W"] < counts[stage, "I"]:
            yield counts.next(stage, "W")


class _DualPipeV:
    """DualPipe in a V (DeepSeek-AI, 2024), with the steps of DeepSeek's code. Overlapped passes follow each other."""

    def __init__(self, rank: int, ranks: int, stages: list[int]) -> None:
        self._rank, self._ranks = rank, ranks
        self._down, self._up = stages
        self._counts = _Counts()
        self._weights: list[Task] = []

    def tasks(self, micro_batches: int) -> Iterator[Task]:
        rank, behind = self._rank, self._ranks - self._rank - 1
        down, up = self._down, self._up
        for _ in range(2 * behind):
            yield self._forward(down)
        for _ in range(rank + 1):
            yield from (self._forward(down), self._forward(up))
        for _ in range(behind):
            yield self._input_gradient(up)
            yield from self._pending_weight()
            yield self._forward(up)
        for _ in range(micro_batches - 2 * self._ranks + rank + 1):
            yield from (self._forward(down), self._backward(up), self._forward(up), self._backward(down))
        for _ in range(behind):
            yield from (self._backward(up), self._forward(up), self._backward(down))
        yield from self._drain(behind)

    def _drain(self, behind: int) -> Iterator[Task]:
        """The end, in whose second half the backward passes are split."""
        half, odd, split = (self._rank + 1) // 2, self._rank % 2 == 1, False
        for place in range(self._rank + 1):
            split = split or (place == half and odd)
            yield self._input_gradient(self._up) if split else self._backward(self._up)
            split = split or (place == half and not odd)
            yield self._input_gradient(self._down) if split else self._backward(self._down)
        for _ in range(behind):
            yield from self._pending_weight()
            yield self._input_gradient(self._down) if split else self._backward(self._down)
        for _ in range(self._rank + 1):
            yield from self._pending_weight()

    def _forward(self, stage: int) -> Task:
        return self._counts.next(stage, "F")

    def _backward(self, stage: int) -> Task:
        return self._counts.next(stage, "I")._replace(kind="B")

    def _input_gradient(self, stage: int) -> Task:
        task = self._counts.next(stage, "I")
        self._weights.append(task._replace(kind="W"))
        return task

    def _pending_weight(self) -> Iterator[Task]:
        if self._weights:
            yield self._weights.pop(0)
