"""Schedules in torch's CSV format: what torch writes is read, and every mistake is named."""

import csv
import io
from pathlib import Path

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

from rolecall.kit.csv_schedules import format_schedule, parse_schedule
from rolecall.kit.orders import planned_order
from rolecall.kit.own_schedule import OwnSchedule
from rolecall.kit.schedules import SCHEDULES, ScheduleName
from rolecall.spec.errors import InputError


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in {"GPipe", "1F1B"}])
def test_what_torch_writes_is_read(name: ScheduleName) -> None:
    """With empty cells, and with the overlapping passes of DualPipeV."""
    file = io.StringIO()
    csv.writer(file).writerows(get_schedule_ops(name, 4, 8, 2))
    own = parse_schedule(file.getvalue().splitlines())
    assert [list(tasks) for tasks in own.order] == planned_order(name, 4, 8, 2)
    assert (own.ranks, own.virtual_stages, own.micro_batches) == (4, 2, 8)
    assert own.placement == SCHEDULES[name].placement
    assert own.splits_backward == any(task.kind == "W" for tasks in own.order for task in tasks)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_written_is_read(name: ScheduleName) -> None:
    order = planned_order(name, 3, 9, SCHEDULES[name].default_virtual_stages)
    assert [list(tasks) for tasks in parse_schedule(format_schedule(order).splitlines()).order] == order


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "0 rows"),
        (["0F0,0B0,0X0", "1F0,1B0"], "'0X0' is not a task"),
        (["0F0,0SEND_F0", "1F0,1B0"], "rank 0: '0SEND_F0' is not a task"),
        (["0F0,0B0,0F0", "1F0,1B0"], "0F0 2 times"),
        (["0F0,0B0,0F1,0B1", "1F0,1B0"], "lacks 1F1"),
        (["0F0", "1F0,1B0"], "either 0B0, or both 0I0 and 0W0"),
        (["0F0,0I0", "1F0,1B0"], "either 0B0, or both 0I0 and 0W0"),
        (["0F0,0B0,0I0,0W0", "1F0,1B0"], "either 0B0, or both 0I0 and 0W0"),
        (["0B0,0F0", "1F0,1B0"], "rank 0 waits at 0B0 for 0F0"),
        (["0F0,0W0,0I0", "1F0,1B0"], "rank 0 waits at 0W0 for 0I0"),
        (["0F0,0B0", "2F0,2B0"], r"valid for 2 ranks with 1 stage each"),
        (["0F0,0B0,1F0,1B0", "2F0,2B0,3F0,3B0"], r"rank 0: \[0, 2\]; rank 1: \[1, 3\]"),
        (["0F0,0F1,0B0,0B1", "1F1,1F0,1B0,1B1"], "must take the micro-batches in order"),
        (["0F99999,0B0", "1F0,1B0"], "at most 16383"),
    ],
)
def test_a_mistake_is_named(rows: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_schedule(rows)


def test_a_deadlock_names_who_waits_for_what() -> None:
    with pytest.raises(InputError, match="rank 0 waits at 0B1 for 1I1"):
        parse_schedule(["0F0,0F1,0B1,0F2,0B0,0B2", "1F0,1F1,1F2,1B1,1B0,1B2"])


def test_digits_of_other_scripts_are_no_numbers() -> None:
    with pytest.raises(InputError):
        parse_schedule(["\u0660F0,0B0", "1F0,1B0"])


def test_a_file_must_be_in_a_data_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n")
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path))
    assert OwnSchedule.model_validate({"csv": str(path)}).load().ranks == 2
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", "/nowhere")
    with pytest.raises(InputError, match="outside the folders"):
        OwnSchedule.model_validate({"csv": str(path)}).load()
