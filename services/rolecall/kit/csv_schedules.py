"""Schedules that users write themselves, as CSV in torch's format. Torch-free.

Each row is a rank, each cell a task such as `0F3`: stage 0, forward pass, micro-batch 3. `B` is a full backward pass,
`I` and `W` are its two halves (for the inputs, for the weights). A cell can combine tasks, `(0F4;3B0)OVERLAP_F_B`, and
empty cells are ignored. `_PipelineSchedule._dump_csv` of `torch.distributed.pipelining` writes this format.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rolecall.kit.pipelining import Task, timed
from rolecall.kit.schedules import MAX_MICRO_BATCHES, MAX_VIRTUAL, Placement, stages_of
from rolecall.spec.errors import InputError
from rolecall.spec.numbers import counted

MAX_BYTES = 4 << 20
"""The maximum size of a file."""
MAX_RANKS = 256
MAX_TASKS = 200_000
"""The maximum number of tasks, also in cells that combine them."""
_TASK = re.compile(r"(\d{1,5})([FBIW])(\d{1,5})", re.ASCII)
_OVERLAP = re.compile(r"\(([^()]*)\)OVERLAP_F_B")
_SHOWN = 40
"""Characters of an invalid cell in an error."""


@dataclass(frozen=True, slots=True)
class CsvSchedule:
    """A valid schedule: every task exactly once, on one rank for each stage, in an order that doesn't deadlock."""

    cells: tuple[tuple[str, ...], ...]
    """Each rank's cells in torch's format, without empty ones."""
    order: tuple[tuple[Task, ...], ...]
    """Each rank's tasks."""
    virtual_stages: int
    """The stages of each rank."""
    micro_batches: int
    placement: Placement

    @property
    def ranks(self) -> int:
        return len(self.order)

    @property
    def splits_backward(self) -> bool:
        """True if a backward pass is split in halves."""
        return any(task.kind in {"I", "W"} for tasks in self.order for task in tasks)


def count_tasks(rows: Iterable[str]) -> int:
    """The number of tasks in these lines of CSV, also in cells that combine them. Raises `InputError`."""
    return _count(_cells(rows))


def _cells(rows: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The cells that are not empty, by rank."""
    try:
        table = [[cell.strip() for cell in row] for row in csv.reader(rows, strict=True)]
    except csv.Error as error:
        raise InputError(f"the schedule is not valid CSV: {error}") from error
    return tuple(tuple(cell for cell in row if cell) for row in table if row)


def _count(cells: Iterable[Iterable[str]]) -> int:
    return sum(1 + cell.count(";") for row in cells for cell in row)


def parse_schedule(rows: Iterable[str]) -> CsvSchedule:
    """The schedule of these lines of CSV. Raises `InputError`, which names the rank and the task.

    10,000 tasks take about 50 ms.
    """
    cells = _cells(rows)
    if not 1 <= len(cells) <= MAX_RANKS:
        raise InputError(f"the schedule has {len(cells)} rows; it needs one for each rank: 1 to {MAX_RANKS}")
    if (count := _count(cells)) > MAX_TASKS:
        raise InputError(f"the schedule has {count:,} tasks; at most {MAX_TASKS:,} are allowed")
    order = tuple(tuple(task for cell in row for task in _tasks(cell, rank)) for rank, row in enumerate(cells))
    virtual_stages, placement = _stages(order)
    micro_batches = 1 + max(task.micro_batch for tasks in order for task in tasks)
    _check_complete(order, len(cells) * virtual_stages, micro_batches)
    _check_losses(order, len(cells) * virtual_stages - 1)
    try:
        timed(order)
    except ValueError as error:
        raise InputError(f"the schedule is not valid: {error}") from error
    return CsvSchedule(cells, order, virtual_stages, micro_batches, placement)


def format_schedule(order: Sequence[Sequence[Task]]) -> str:
    """The tasks as CSV in torch's format."""
    return "".join(",".join(map(str, tasks)) + "\n" for tasks in order)


def _tasks(cell: str, rank: int) -> list[Task]:
    if one := _TASK.fullmatch(cell):
        tasks = [_task(one)]
    else:
        combined = _OVERLAP.fullmatch(cell)
        texts = [text.strip() for text in combined[1].split(";")] if combined else []
        tasks = [_task(one) for text in texts if (one := _TASK.fullmatch(text))]
        if not tasks or len(tasks) < len(texts):
            raise InputError(
                f"rank {rank}: {cell[:_SHOWN]!r} is not a task; valid: STAGE, then F, B, I or W, then MICRO-BATCH, "
                "such as 0F3, or tasks that overlap, such as (0F4;3B0)OVERLAP_F_B"
            )
    if (largest := max(task.micro_batch for task in tasks)) >= MAX_MICRO_BATCHES:
        raise InputError(f"rank {rank}: micro-batch {largest} is too large; at most {MAX_MICRO_BATCHES - 1} is allowed")
    return tasks


def _task(found: re.Match[str]) -> Task:
    stage, kind, micro_batch = found.groups()
    return Task(int(stage), kind, int(micro_batch))  # type: ignore[arg-type] - as in the pattern


def _stages(order: Sequence[Sequence[Task]]) -> tuple[int, Placement]:
    """The number of stages per rank, and their placement."""
    ranks, own = len(order), [sorted({task.stage for task in tasks}) for tasks in order]
    virtual_stages = len(own[0])
    if not 1 <= virtual_stages <= MAX_VIRTUAL:
        raise InputError(f"rank 0 has {virtual_stages} stages; each rank needs 1 to {MAX_VIRTUAL}")
    for placement in ("loop", "v"):
        if placement == "v" and virtual_stages != 2:
            break
        if own == [sorted(stages_of(rank, ranks, virtual_stages, placement)) for rank in range(ranks)]:
            return virtual_stages, placement
    loop = "; ".join(f"rank {rank}: {stages_of(rank, ranks, virtual_stages, 'loop')}" for rank in range(min(ranks, 4)))
    given = "; ".join(f"rank {rank}: {stages}" for rank, stages in enumerate(own[:4]))
    raise InputError(
        f"the stages of the ranks are not valid ({given}{'; …' if ranks > 4 else ''}); valid for {ranks} ranks with "
        f"{counted(virtual_stages, 'stage')} each: rank r has the stages r, r + {ranks}, … ({loop}), or with two "
        f"stages r and {2 * ranks - 1} - r"
    )


def _check_losses(order: Sequence[Sequence[Task]], last: int) -> None:
    """Raise `InputError` unless the last stage takes the micro-batches in order: torch finds losses by that order."""
    numbers = [task.micro_batch for tasks in order for task in tasks if task.stage == last and task.kind == "F"]
    if numbers != sorted(numbers):
        raise InputError(
            f"the forward passes of the last stage, {last}, must take the micro-batches in order, because torch "
            f"assigns losses to them in this order; they take {', '.join(map(str, numbers[:8]))}"
        )


def _check_complete(order: Sequence[Sequence[Task]], stages: int, micro_batches: int) -> None:
    """Raise `InputError` unless each micro-batch passes each stage forward once, and backward once, whole or split."""
    counts = Counter(task for tasks in order for task in tasks)
    if len(counts) < sum(map(len, order)):
        task, count = next((task, count) for task, count in counts.items() if count > 1)
        raise InputError(f"the schedule has {task} {count} times; every task must occur once")
    for stage in range(stages):
        for number in range(micro_batches):
            forward, whole, inputs, weights = [(stage, kind, number) in counts for kind in "FBIW"]
            if not forward:
                raise InputError(f"the schedule lacks {stage}F{number}: stage {stage} must take micro-batch {number}")
            if whole + inputs != 1 or whole + weights != 1:
                raise InputError(
                    f"the schedule needs either {stage}B{number}, or both {stage}I{number} and {stage}W{number}"
                )
