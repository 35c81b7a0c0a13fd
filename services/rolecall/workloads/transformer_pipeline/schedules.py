"""Which pipeline schedules there are and what each is legal with: one table, checked at `POST /jobs` and shown in
docs/workloads.md. Torch-free.

The rules are those of `torch.distributed.pipelining`, 2.11 to 2.14. Both splits run all schedules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from rolecall.kit.divisors import divisors

Name = Literal["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]
Split = Literal["manual", "tracer"]
Placement = Literal["loop", "v"]

MOST = 64
"""Virtual stages that a rank may hold where the schedule sets no limit."""
MOST_MICRO_BATCHES = 16_384
"""Micro-batches of a replica; the ranks' order of work has so many entries for each virtual stage."""


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Which numbers of micro-batches a schedule takes."""

    said: str
    """The rule in words."""
    legal: Callable[[int, int, int], bool]
    """Whether (micro-batches, ranks, virtual stages in all) obey it."""


_ANY = MicroBatches("1 or more", lambda count, ranks, stages: count >= 1)
_FILLING = MicroBatches("at least one per rank", lambda count, ranks, stages: count >= ranks)
_FILLING_STAGES = MicroBatches("at least one per virtual stage", lambda count, ranks, stages: count >= stages)
_WHOLE_ROUNDS = MicroBatches(
    "a multiple of the rounds, which are micro-batches // ranks",
    lambda count, ranks, stages: count % max(1, count // ranks) == 0,
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule and its limits."""

    name: Name
    paper: str
    virtual_stages: tuple[int, int]
    """The least and the most virtual stages that a rank can hold."""
    micro_batches: MicroBatches
    checkpointing: bool = True
    """Whether activations may be computed anew in the backward pass. Where that is in two parts, each of a layer's
    weights would compute the whole layer anew: measured, 5 times instead of once."""
    placement: Placement = "loop"
    """`loop`: rank r holds virtual stages r, r + ranks, …; `v`: the r-th and the r-th from the end."""

    @property
    def default_virtual_stages(self) -> int:
        """What a rank holds unless the user says otherwise."""
        return min(2, self.virtual_stages[1])

    def legal_micro_batches(self, batch: int, ranks: int, stages: int) -> list[int]:
        """All numbers of micro-batches that a replica's batch of `batch` sequences can be cut into."""
        counts = [count for count in divisors(batch) if count <= MOST_MICRO_BATCHES]
        return [count for count in counts if self.micro_batches.legal(count, ranks, stages)]


SCHEDULES: dict[Name, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("GPipe", "https://arxiv.org/abs/1811.06965", (1, 1), _ANY),
        Schedule("1F1B", "https://arxiv.org/abs/1806.03377", (1, 1), _FILLING),
        Schedule("Interleaved1F1B", "https://arxiv.org/abs/2104.04473", (1, MOST), _WHOLE_ROUNDS),
        Schedule("LoopedBFS", "https://arxiv.org/abs/2211.05953", (1, MOST), _ANY),
        Schedule(
            "InterleavedZeroBubble", "https://arxiv.org/abs/2401.10241", (1, MOST), _WHOLE_ROUNDS, checkpointing=False
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
assert tuple(SCHEDULES) == get_args(Name), "the table has a row for each legal name"


def stages_of(rank: int, ranks: int, virtual_stages: int, placement: Placement) -> list[int]:
    """The virtual stages that a pipeline rank holds, in the order of the layers."""
    stages = ranks * virtual_stages
    return [rank, stages - 1 - rank] if placement == "v" else list(range(rank, stages, ranks))


def rank_of(stage: int, ranks: int, placement: Placement) -> int:
    """The pipeline rank that holds a virtual stage."""
    lap, place = divmod(stage, ranks)
    return ranks - 1 - place if placement == "v" and lap == 1 else place


def range_said(least: int, most: int) -> str:
    """A range of counts in words."""
    return f"{least}" if least == most else f"{least} to {most}"


def markdown_table() -> str:
    """The table as the documentation shows it."""
    columns = "| `schedule` | virtual stages per rank | micro-batches of a replica | `activation_checkpointing` |"
    lines = [columns, "|---|---|---|---|"]
    for schedule in SCHEDULES.values():
        counts = range_said(*schedule.virtual_stages)
        name, checkpointing = (
            f"[{schedule.name}]({schedule.paper})",
            "with `split: manual`" if schedule.checkpointing else "no",
        )
        lines.append(f"| {name} | {counts} | {schedule.micro_batches.said} | {checkpointing} |")
    return "\n".join(lines) + "\n"
