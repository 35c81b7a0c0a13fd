"""Pipeline planning: schedules, their bubbles without communication, cuts by name and optimal cuts. Torch-free."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, cast

from rolecall.spec.errors import InputError

Kind = Literal["F", "B", "I", "W"]
"""Forward; full backward; backward for the inputs only; backward for the weights only."""

COSTS: Mapping[Kind, int] = {"F": 1, "I": 1, "W": 1, "B": 2}
"""Costs in forward passes, as in the papers: each kind is one matrix product, a full backward is two."""
LOSS = "loss"
"""The name of the computation between the forward and the backward pass of a micro-batch through the last stage."""


class Task(NamedTuple):
    """One pass of one micro-batch through one virtual stage."""

    stage: int
    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        """As in torch's CSV files of schedules, such as `0F3`."""
        return f"{self.stage}{self.kind}{self.micro_batch}"


_TaskKey = tuple[int, Kind, int]
"""The fields of a task. A plain tuple equals such a task, and takes a fraction of the time to make."""
Cost = Callable[[Task], float]
"""Returns the duration of a task."""


def unit_cost(task: Task) -> float:
    """The duration for equal stages, in forward passes."""
    return COSTS[task.kind]


class PassTimes:
    """The mean durations of measured passes, by stage and kind."""

    def __init__(self) -> None:
        self.seconds, self.counts = defaultdict[tuple[int, Kind], float](float), Counter[tuple[int, Kind]]()

    def add(self, stage: int, name: str, seconds: float) -> None:
        """Add a pass, or the loss, which counts with the forward pass that it follows. Others are ignored."""
        kind = cast(Kind, "F" if name == LOSS else name)
        if kind in COSTS:
            self.seconds[stage, kind] += seconds
            self.counts[stage, kind] += name == kind

    def has(self, order: Iterable[Iterable[Task]]) -> bool:
        """True if passes of the kind and stage of each of these tasks were measured."""
        return all(self.counts[task.stage, task.kind] for tasks in order for task in tasks)

    def cost(self, task: Task) -> float:
        """The mean seconds of such a task, which must have been measured."""
        return self.seconds[task.stage, task.kind] / self.counts[task.stage, task.kind]


def fill_and_drain(ranks: int, micro_batches: int) -> list[list[Task]]:
    """The GPipe schedule: all forward passes, then all backward passes."""
    kinds: tuple[Kind, Kind] = ("F", "B")
    return [[Task(rank, kind, number) for kind in kinds for number in range(micro_batches)] for rank in range(ranks)]


def one_forward_one_backward(ranks: int, micro_batches: int) -> list[list[Task]]:
    """The 1F1B schedule with a flush at the end of the step (Narayanan et al., 2021).

    Rank r warms up with `ranks - r` forward passes, then alternates, so that it keeps the activations of at most
    `ranks - r` micro-batches. Forward and backward passes both take the micro-batches in order.
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


def zero_bubble(ranks: int, micro_batches: int) -> list[list[Task]]:
    """The schedule ZB-H1 (Qi et al., 2023, https://arxiv.org/abs/2401.10241): 1F1B with split backward passes.

    A rank computes the gradients of its inputs first, for which the rank before it waits. Rank r computes those of its
    weights r micro-batches later, and the last ones when the others are done. A rank keeps the activations of at most
    `ranks` micro-batches. All passes take the micro-batches in order.
    """
    order: list[list[Task]] = []
    for rank, tasks in enumerate(one_forward_one_backward(ranks, micro_batches)):
        split: list[Task] = []
        for task in tasks:
            split.append(task._replace(kind="I") if task.kind == "B" else task)
            if task.kind == "B" and task.micro_batch >= rank:
                split.append(Task(rank, "W", task.micro_batch - rank))
        split += [Task(rank, "W", number) for number in range(max(0, micro_batches - rank), micro_batches)]
        order.append(split)
    return order


def most_in_flight(tasks: Iterable[Task]) -> int:
    """The most micro-batches of which a rank with these tasks holds activations at once, summed over its stages."""
    held = accumulate({"F": 1, "B": -1, "W": -1}.get(task.kind, 0) for task in tasks)
    return max(held, default=0)


def bubble(order: Sequence[Sequence[Task]], cost: Cost = unit_cost) -> float:
    """The share of all ranks' time that is idle with instant communication, given each rank's tasks in order.

    Raises `ValueError` for an order that deadlocks.
    """
    work, length = sum(cost(task) for tasks in order for task in tasks), makespan(order, cost)
    return 1 - work / (len(order) * length) if length else 0.0


def makespan(order: Sequence[Sequence[Task]], cost: Cost = unit_cost) -> float:
    """The time at which the last rank finishes; raises `ValueError` for an order that deadlocks."""
    return max((tasks[-1].end for tasks in timed(order, cost) if tasks), default=0)


class TimedTask(NamedTuple):
    """A task with its times, in the unit of its cost."""

    task: Task
    begin: float
    end: float


def timed(order: Sequence[Sequence[Task]], cost: Cost = unit_cost) -> list[list[TimedTask]]:
    """Each rank's tasks with the earliest possible times; raises `ValueError` for an order that deadlocks."""
    done: dict[_TaskKey, float] = {}
    last = max((task.stage for tasks in order for task in tasks), default=0)
    planned: list[list[TimedTask]] = [[] for _ in order]
    waiting: dict[_TaskKey, list[int]] = {}
    """The ranks that need a result to continue: to try every rank after each task would take seconds."""
    ready = list(range(len(order)))
    while ready:
        rank = ready.pop()
        tasks, own = order[rank], planned[rank]
        now = own[-1].end if own else 0
        for place in range(len(own), len(tasks)):
            task = tasks[place]
            begin, missing = now, None
            for need in _dependencies(task, last):
                end = done.get(need)
                if end is None:
                    missing = need
                    break
                begin = max(begin, end)
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            stage, kind, micro_batch = task
            # A full backward pass includes the input gradient, under which dependents look it up.
            result = (stage, "I", micro_batch) if kind == "B" else task
            done[result] = now = begin + cost(task)
            own.append(TimedTask(task, begin, now))
            if result in waiting:
                ready += waiting.pop(result)
    stuck = [
        (rank, tasks[len(own)])
        for rank, (tasks, own) in enumerate(zip(order, planned, strict=True))
        if len(own) < len(tasks)
    ]
    if stuck:
        rank, task = stuck[0]
        missing = Task(*next(need for need in _dependencies(task, last) if need not in done))
        raise ValueError(
            f"this order deadlocks: its ranks wait for one another; rank {rank} waits at {task} for {missing}"
        )
    return planned


def _dependencies(task: Task, last: int) -> tuple[_TaskKey, ...]:
    stage, kind, micro_batch = task
    if kind == "F":
        return ((stage - 1, "F", micro_batch),) if stage > 0 else ()
    if kind == "W":
        return ((stage, "I", micro_batch),)
    if stage < last:
        return (stage, "F", micro_batch), (stage + 1, "I", micro_batch)
    return ((stage, "F", micro_batch),)


Side = Literal["beginning", "end"]
"""The side of a block at which a model is cut."""
_MAX_LISTED = 64
"""Names of blocks in an error message; of a longer list, only the first ones and the last one appear."""


def cut_indices(cuts: Iterable[tuple[str, Side]], names: Sequence[str]) -> list[int]:
    """The indices in `names` of the blocks that begin the later stages, for cuts at a side of the named blocks.

    Raises `InputError` for a name that the model doesn't have, a side without blocks beyond it, and cuts that repeat or
    are not in the model's order.
    """
    indices = {name: index for index, name in enumerate(names)}
    found: list[int] = []
    for name, side in cuts:
        before = side == "beginning"
        valid = names[1:] if before else names[:-1]
        if name not in indices or name == names[0 if before else -1]:
            raise InputError(
                f"cuts: the model has no block {name} to cut {'before' if before else 'after'}; valid: {listed(valid)}"
            )
        found.append(indices[name] + (not before))
    if found != sorted(set(found)):
        raise InputError(f"cuts must be in the model's order, each at most once; valid: {listed(names[1:])}")
    return found


def listed(names: Sequence[str]) -> str:
    """The names for an error message; of many, the first ones and the last one."""
    if len(names) <= _MAX_LISTED:
        return ", ".join(names)
    return f"{', '.join(names[: _MAX_LISTED - 1])}, …, {names[-1]}"


def best_cuts(costs: Sequence[Sequence[float]]) -> list[int]:
    """The first block of every stage but the first; `costs[s][b]` is the cost of block `b` on stage `s`.

    Minimizes the cost of the slowest stage by dynamic programming over (stage, number of blocks). Every stage gets at
    least one block. Ties go to the earliest cuts.
    """
    stages, blocks = len(costs), len(costs[0])
    before = [list(accumulate(of_stage, initial=0.0)) for of_stage in costs]
    # slowest[e]: the minimal cost of the slowest stage if the stages so far hold the first e blocks.
    slowest = before[0]
    chosen: list[list[int]] = []
    for stage in range(1, stages):
        choices = [_best_cut(slowest, before[stage], stage, end) for end in range(blocks + 1)]
        slowest = [cost for cost, _ in choices]
        chosen.append([cut for _, cut in choices])
    cuts: list[int] = []
    for choices in reversed(chosen):
        cuts.append(choices[cuts[-1] if cuts else blocks])
    return cuts[::-1]


def _best_cut(slowest: Sequence[float], before: Sequence[float], stage: int, end: int) -> tuple[float, int]:
    """The cost of the slowest stage and the best first block of `stage`, if `stage` ends with block `end - 1`."""
    options = [(max(slowest[cut], before[end] - before[cut]), cut) for cut in range(stage, end)]
    return min(options, default=(float("inf"), stage))
