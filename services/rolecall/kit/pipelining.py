"""Pipeline parallelism in theory: where to cut a model, in which order ranks work, and how long they idle. Torch-free.

The idle time is that of equal stages and messages that take no time.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
"""Forward; whole backward; backward to the inputs alone; backward to the weights alone."""

COSTS: Mapping[Kind, int] = {"F": 1, "I": 1, "W": 1, "B": 2}
"""In the papers' unit, a forward pass: a matrix product forward, one to the inputs and one to the weights back."""


class Task(NamedTuple):
    """What a rank does at a time: one micro-batch in one virtual stage."""

    stage: int
    kind: Kind
    micro_batch: int


def fill_and_drain(ranks: int, micro_batches: int) -> list[list[Task]]:
    """GPipe's order: all forward passes, then all backward passes."""
    kinds: tuple[Kind, Kind] = ("F", "B")
    return [[Task(rank, kind, number) for kind in kinds for number in range(micro_batches)] for rank in range(ranks)]


def one_forward_one_backward(ranks: int, micro_batches: int) -> list[list[Task]]:
    """1F1B's order, with a flush at the end of the step (Narayanan et al., 2021).

    A rank runs ahead by as many forward passes as there are ranks from it to the end, then alternates, so that it holds
    the activations of at most `ranks - rank` micro-batches. Both kinds of passes take the micro-batches in order.
    Torch's own account of it (2.14) has the last rank begin with the second micro-batch.
    """
    order: list[list[Task]] = []
    for rank in range(ranks):
        ahead = min(micro_batches, ranks - rank)
        tasks = [Task(rank, "F", number) for number in range(ahead)]
        for number in range(micro_batches):
            tasks.append(Task(rank, "B", number))
            if number + ahead < micro_batches:
                tasks.append(Task(rank, "F", number + ahead))
        order.append(tasks)
    return order


def bubble(order: Sequence[Sequence[Task]]) -> float:
    """The share of all ranks' time in which they wait, given the tasks of each rank in their order.

    Raises `ValueError` for an order in which ranks would wait for one another for ever.
    """
    work = sum(COSTS[task.kind] for tasks in order for task in tasks)
    return 1 - work / (len(order) * makespan(order))


def makespan(order: Sequence[Sequence[Task]]) -> int:
    """When the last rank is done."""
    done: dict[Task, int] = {}
    last = max(task.stage for tasks in order for task in tasks)
    places, clocks = [0] * len(order), [0] * len(order)
    moved = True
    while moved:
        moved = False
        for rank, tasks in enumerate(order):
            while places[rank] < len(tasks) and (ready := _ready(tasks[places[rank]], last, done)) is not None:
                task = tasks[places[rank]]
                clocks[rank] = done[_key(task)] = max(clocks[rank], ready) + COSTS[task.kind]
                places[rank] += 1
                moved = True
    if any(place < len(tasks) for place, tasks in zip(places, order, strict=True)):
        raise ValueError("the ranks of this order wait for one another")
    return max(clocks)


def _ready(task: Task, last: int, done: Mapping[Task, int]) -> int | None:
    """When everything that a task needs is there; none if that is not known yet."""
    times = [done.get(need) for need in _needs(task, last)]
    return None if None in times else max((time for time in times if time is not None), default=0)


def _needs(task: Task, last: int) -> list[Task]:
    stage, kind, micro_batch = task
    if kind == "F":
        return [Task(stage - 1, "F", micro_batch)] if stage > 0 else []
    if kind == "W":
        return [Task(stage, "I", micro_batch)]
    gradient = [Task(stage + 1, "I", micro_batch)] if stage < last else []
    return [Task(stage, "F", micro_batch), *gradient]


def _key(task: Task) -> Task:
    """Under which name others look for a task: a whole backward pass gives the gradient of the inputs, too."""
    return task._replace(kind="I") if task.kind == "B" else task


def best_cuts(costs: Sequence[Sequence[float]]) -> list[int]:
    """The first block of every stage but the first; `costs[s][b]` is what block `b` costs on stage `s`.

    Every stage gets one block or more. Among equally good partitions it prefers early cuts. An optimal partition of a
    chain, by dynamic programming over (stage, first blocks).
    """
    stages, blocks = len(costs), len(costs[0])
    before = [list(accumulate(of_stage, initial=0.0)) for of_stage in costs]
    # slowest[e] is the least possible cost of the slowest stage when the stages so far share the first e blocks.
    slowest = before[0]
    chosen: list[list[int]] = []
    for stage in range(1, stages):
        choices = [_best_cut(slowest, before[stage], stage, end) for end in range(blocks + 1)]
        slowest = [cost for cost, _ in choices]
        chosen.append([cut for _, cut in choices])
    return _walk_back(chosen, blocks)


def _best_cut(slowest: Sequence[float], before: Sequence[float], stage: int, end: int) -> tuple[float, int]:
    """The best place for `stage` to begin if it ends with block `end - 1`: the slowest stage's cost, and the place."""
    options = [(max(slowest[cut], before[end] - before[cut]), cut) for cut in range(stage, end)]
    return min(options, default=(float("inf"), stage))


def _walk_back(chosen: list[list[int]], blocks: int) -> list[int]:
    cuts: list[int] = []
    for choices in reversed(chosen):
        cuts.append(choices[cuts[-1] if cuts else blocks])
    return cuts[::-1]
