"""The table of valid combinations: what the documentation shows, and what torch itself refuses."""

from pathlib import Path

import pytest

from rolecall.kit.schedules import SCHEDULES, rank_of, stages_of

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documentation_has_the_table_that_the_service_checks() -> None:
    columns = "| `schedule` | virtual stages per rank | micro-batches of a replica | `activation_checkpointing` |"
    lines = [columns, "|---|---|---|---|"]
    for schedule in SCHEDULES.values():
        name, rule = f"[{schedule.name}]({schedule.paper})", schedule.micro_batches.description
        checkpointing = "with `split: manual`" if schedule.checkpointing else "no"
        lines.append(f"| {name} | {schedule.virtual_stages_text} | {rule} | {checkpointing} |")
    assert "\n".join(lines) in (DOCS / "workloads.md").read_text()


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages", "valid"),
    [
        ("GPipe", 4, 4, [1, 2, 3, 4, 6, 12]),
        ("1F1B", 4, 4, [4, 6, 12]),
        ("Interleaved1F1B", 4, 8, [1, 2, 3, 4, 6, 12]),
        ("InterleavedZeroBubble", 5, 10, [1, 2, 3, 4, 6, 12]),
        ("LoopedBFS", 4, 8, [1, 2, 3, 4, 6, 12]),
        ("ZBVZeroBubble", 4, 8, [1, 2, 3, 4, 6, 12]),
        ("DualPipeV", 2, 4, [4, 6, 12]),
        ("DualPipeV", 4, 8, [12]),
    ],
)
def test_valid_micro_batches_divide_the_batch_and_obey_the_rule(
    schedule: str, ranks: int, stages: int, valid: list[int]
) -> None:
    assert SCHEDULES[schedule].valid_micro_batches(12, ranks, stages) == valid  # type: ignore[index]


def test_rounds_are_whole() -> None:
    """9 micro-batches on 4 ranks are two rounds and one over."""
    rule = SCHEDULES["Interleaved1F1B"].micro_batches.is_valid
    assert [count for count in range(1, 13) if rule(count, 4, 8)] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]


@pytest.mark.parametrize("placement", ["loop", "v"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_virtual_stage_lies_on_one_rank(ranks: int, placement: str) -> None:
    held = {stage: rank for rank in range(ranks) for stage in stages_of(rank, ranks, 2, placement)}  # type: ignore[arg-type]
    assert held == {stage: rank_of(stage, ranks, placement) for stage in range(2 * ranks)}  # type: ignore[arg-type]


def test_a_v_folds_the_model() -> None:
    assert [stages_of(rank, 3, 2, "v") for rank in range(3)] == [[0, 5], [1, 4], [2, 3]]
    assert [stages_of(rank, 3, 2, "loop") for rank in range(3)] == [[0, 3], [1, 4], [2, 5]]
