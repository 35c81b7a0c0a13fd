# pyright: standard
"""Generated data has the size that a job names: no job fills the disk that a node and all of its jobs share."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rolecall.kit.cache import build_once
from rolecall.kit.tables.params import SyntheticData
from rolecall.kit.tables.synthetic import open_synthetic_table
from rolecall.kit.text.corpus import open_corpus
from rolecall.kit.text.params import Text
from rolecall.spec.errors import InputError


class Disk(NamedTuple):
    """The result of `shutil.disk_usage`."""

    total: int
    used: int
    free: int


def table(folder: Path) -> None:
    """Ten million rows of 16 bytes."""
    open_synthetic_table(SyntheticData.model_validate({"synthetic": {"rows": 10_000_000}}), folder)


def text(folder: Path) -> None:
    """Forty million tokens of 4 bytes."""
    open_corpus(Text.model_validate({"synthetic": {"tokens": 20_000_000, "test": 20_000_000}}), folder)


@pytest.mark.parametrize("generate", [table, text])
def test_generated_data_leaves_room_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generate: Callable[[Path], None]
) -> None:
    # 5 % of the disk stay free: there is room for 150 million bytes.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk(10**9, 8 * 10**8, 2 * 10**8))
    with pytest.raises(InputError, match=r"takes 160000000 bytes.*room for 150000000"):
        generate(tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == 0


def test_a_build_that_fails_frees_its_space_at_once(tmp_path: Path) -> None:
    def fail(draft: Path) -> Any:
        (draft / "half").write_bytes(bytes(1 << 16))
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        build_once(tmp_path, "key", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]
