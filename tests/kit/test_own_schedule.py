"""The parameter of a job with its own schedule."""

import json
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError
from tests.cpu_time import is_within

from rolecall.kit import own_schedule
from rolecall.kit.csv_schedules import format_schedule
from rolecall.kit.own_schedule import MAX_ROW_TASKS, OwnSchedule
from rolecall.kit.pipelining import Task, one_forward_one_backward, zero_bubble
from rolecall.spec.errors import InputError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"csv": "/data/x.csv", "rows": ["0F0,0B0"]}, r"either csv \(a file\) or rows"),
        ({}, r"either csv \(a file\) or rows"),
        ({"rows": ["0F0"]}, "either 0B0"),
    ],
)
def test_a_schedule_is_one_valid_file_or_valid_rows(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OwnSchedule.model_validate(given)


def test_a_large_or_undecodable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_DATA_ROOTS", str(tmp_path))
    path = tmp_path / "own.csv"
    for content, message in ((b"\xff\xfe", "own.csv"), (b"0F0," * (2 << 20), "more than")):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            OwnSchedule.model_validate({"csv": str(path)}).load()


def test_rows_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of a job needs them several times, and they can be large."""
    read = Mock(wraps=own_schedule.parse_schedule)
    monkeypatch.setattr(own_schedule, "parse_schedule", read)
    given = {"rows": ["0F0,0B0", "1F0,1B0"]}
    first, second = OwnSchedule.model_validate(given), OwnSchedule.model_validate(given)
    assert first.load() is first.load()
    assert read.call_count == 2
    assert first == second
    assert first.model_dump(exclude_none=True) == {"rows": ("0F0,0B0", "1F0,1B0")}


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(one_forward_one_backward(2, MAX_ROW_TASKS // 4), id="every task waits for the other rank"),
        pytest.param(zero_bubble(64, MAX_ROW_TASKS // 64 // 3), id="many ranks"),
    ],
)
def test_the_largest_rows_take_the_master_little_time(order: list[list[Task]]) -> None:
    """The master checks two such jobs at a time, whose check delays those of other users."""
    rows = format_schedule(order).splitlines()
    begin = time.thread_time()
    OwnSchedule.model_validate_json(json.dumps({"rows": rows}))
    assert is_within(time.thread_time() - begin, 0.3)


@pytest.mark.parametrize("combine", [False, True])
def test_larger_rows_of_a_request_must_be_in_a_file(combine: bool) -> None:
    """Also if their tasks are in few cells. Rows that an earlier release has stored stay valid."""
    rows = [",".join(f"{stage}{kind}{number}" for kind in "FB" for number in range(200)) for stage in range(101)]
    if combine:
        rows = [f"({row.replace(',', ';')})OVERLAP_F_B" for row in rows]
    expected = r"has 40,400 tasks; rows can have at most 40,000, and a file \(csv\) 200,000"
    with pytest.raises(ValidationError, match=expected):
        OwnSchedule.model_validate_json(json.dumps({"rows": rows}))
    OwnSchedule.model_validate({"rows": rows})


def test_idle_cells_are_no_tasks() -> None:
    """Torch writes an empty cell for each step in which a rank waits."""
    OwnSchedule.model_validate_json(json.dumps({"rows": [f"0F0{',' * 30_000}0B0", f"{',' * 30_000}1F0,1B0"]}))
