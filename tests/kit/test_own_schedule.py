"""The parameter of a job with its own schedule."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolecall.kit.own_schedule import OwnSchedule
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
