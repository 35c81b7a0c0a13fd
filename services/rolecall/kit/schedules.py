"""The schedules of `torch.distributed.pipelining` (2.11 to 2.14) and their limits. Torch-free, for checks of jobs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from rolecall.kit.divisors import divisors

ScheduleName = Literal[
    "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]
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
    """(micro-batches, ranks, total virtual stages) to True if they are valid."""


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

    name: ScheduleName
    paper: str
    virtual_stages: tuple[int, int]
    """Minimum and maximum virtual stages per rank."""
    micro_batches: MicroBatchRule
    checkpointing: bool = True
    """Support of activation checkpointing. With a split backward pass, each weight of a layer would recompute
    the whole layer: measured, 5 times instead of once."""
    placement: Placement = "loop"
    """`loop`: rank r holds virtual stages r, r + ranks, …; `v`: the r-th and the r-th from the end."""

    @property
    def default_virtual_stages(self) -> int:
        """The default number of virtual stages per rank."""
        return min(2, self.virtual_stages[1])

    @property
    def virtual_stages_text(self) -> str:
        """The valid numbers of virtual stages per rank as text, for messages and documentation."""
        return " to ".join(str(count) for count in sorted(set(self.virtual_stages)))

    def valid_micro_batches(self, batch: int, ranks: int, stages: int) -> list[int]:
        """All valid numbers of micro-batches for a replica's batch of `batch` sequences."""
        counts = [count for count in divisors(batch) if count <= MAX_MICRO_BATCHES]
        return [count for count in counts if self.micro_batches.is_valid(count, ranks, stages)]


SCHEDULES: dict[ScheduleName, Schedule] = {
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
        Schedule("ZBVZeroBubble", "https://arxiv.org/abs/2401.10241", (2, 2), _ANY, checkpointing=False, placement="v"),
        Schedule("DualPipeV", "https://arxiv.org/abs/2412.19437", (2, 2), _FILLING_STAGES, placement="v"),
    )
}
assert tuple(SCHEDULES) == get_args(ScheduleName), "the table has a row for each name"


def stages_of(rank: int, ranks: int, virtual_stages: int, placement: Placement) -> list[int]:
    """The virtual stages of a pipeline rank, in layer order."""
    stages = ranks * virtual_stages
    return [rank, stages - 1 - rank] if placement == "v" else list(range(rank, stages, ranks))


def rank_of(stage: int, ranks: int, placement: Placement) -> int:
    lap, position = divmod(stage, ranks)
    return ranks - 1 - position if placement == "v" and lap == 1 else position
