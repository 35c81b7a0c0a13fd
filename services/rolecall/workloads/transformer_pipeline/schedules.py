"""Pipeline schedules and their limits: one table for the checks at `POST /jobs` and for docs/workloads.md. Torch-free.

The limits are those of `torch.distributed.pipelining`, 2.11 to 2.14. All schedules work with both splits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from rolecall.kit.divisors import divisors

Name = Literal["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
Split = Literal["manual", "tracer"]
Placement = Literal["loop", "v"]

MAX_VIRTUAL = 64
"""Maximum virtual stages per rank if the schedule has no limit."""
MAX_MICRO_BATCHES = 16_384
"""Maximum micro-batches of a replica; the schedule has at least one entry for each, per virtual stage."""


@dataclass(frozen=True, slots=True)
class MicroBatchRule:
    """The valid numbers of micro-batches of a schedule."""

    description: str
    """The rule as text, for messages and documentation."""
    is_valid: Callable[[int, int, int], bool]
    """Whether (micro-batches, ranks, total virtual stages) are valid."""


_ANY = MicroBatchRule("1 or more", lambda count, ranks, stages: count >= 1)
_FILLING = MicroBatchRule("at least one per rank", lambda count, ranks, stages: count >= ranks)
_FILLING_STAGES = MicroBatchRule("at least one per virtual stage", lambda count, ranks, stages: count >= stages)
_WHOLE_ROUNDS = MicroBatchRule(
    "a multiple of the rounds, which are micro-batches // ranks",
    lambda count, ranks, stages: count % max(1, count // ranks) == 0,
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and its limits."""

    name: Name
    paper: str
    virtual_stages: tuple[int, int]
    """Minimum and maximum virtual stages per rank."""
    micro_batches: MicroBatchRule
    checkpointing: bool = True
    """Whether activation checkpointing is supported. With a split backward pass, each weight of a layer would recompute
    the whole layer: measured, 5 times instead of once."""
    placement: Placement = "loop"
    """`loop`: rank r holds virtual stages r, r + ranks, …; `v`: the r-th and the r-th from the end."""

    @property
    def default_virtual_stages(self) -> int:
        """The default number of virtual stages per rank."""
        return min(2, self.virtual_stages[1])

    def valid_micro_batches(self, batch: int, ranks: int, stages: int) -> list[int]:
        """All valid numbers of micro-batches for a replica's batch of `batch` sequences."""
        counts = [count for count in divisors(batch) if count <= MAX_MICRO_BATCHES]
        return [count for count in counts if self.micro_batches.is_valid(count, ranks, stages)]


SCHEDULES: dict[Name, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("GPipe", "https://arxiv.org/abs/1811.06965", (1, 1), _ANY),
        Schedule("1F1B", "https://arxiv.org/abs/1806.03377", (1, 1), _FILLING),
        Schedule("Interleaved1F1B", "https://arxiv.org/abs/2104.04473", (1, MAX_VIRTUAL), _WHOLE_ROUNDS),
        Schedule("LoopedBFS", "https://arxiv.org/abs/2211.05953", (1, MAX_VIRTUAL), _ANY),
        Schedule(
            "InterleavedZeroBubble",
            "https://arxiv.org/abs/2401.10241",
            (1, MAX_VIRTUAL),
            _WHOLE_ROUNDS,
            checkpointing=False,
        ),
        Schedule(
            "ZBVZeroBubble",
            "https://arxiv.org/abs/2401.10241",
            (2, 2),
            _ANY,
            checkpointing=False,
            placement="v",
        ),
        Schedule(
            "DualPipeV",
            "https://arxiv.org/abs/2412.19437",
            (2, 2),
            _FILLING_STAGES,
            placement="v",
        ),
    )
}
assert tuple(SCHEDULES) == get_args(Name), "the table has a row for each name"


def stages_of(rank: int, ranks: int, virtual_stages: int, placement: Placement) -> list[int]:
    """The virtual stages of a pipeline rank, in layer order."""
    stages = ranks * virtual_stages
    return [rank, stages - 1 - rank] if placement == "v" else list(range(rank, stages, ranks))


def rank_of(stage: int, ranks: int, placement: Placement) -> int:
    """The pipeline rank of a virtual stage."""
    lap, position = divmod(stage, ranks)
    return ranks - 1 - position if placement == "v" and lap == 1 else position


def format_range(least: int, most: int) -> str:
    """A range of counts as text."""
    return f"{least}" if least == most else f"{least} to {most}"


def markdown_table() -> str:
    """The table in docs/workloads.md."""
    columns = "| `schedule` | virtual stages per rank | micro-batches of a replica | `activation_checkpointing` |"
    lines = [columns, "|---|---|---|---|"]
    for schedule in SCHEDULES.values():
        counts = format_range(*schedule.virtual_stages)
        name, checkpointing = (
            f"[{schedule.name}]({schedule.paper})",
            "with `split: manual`" if schedule.checkpointing else "no",
        )
        lines.append(f"| {name} | {counts} | {schedule.micro_batches.description} | {checkpointing} |")
    return "\n".join(lines) + "\n"
