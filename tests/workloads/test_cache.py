"""What a node makes once is whole or not there."""

from pathlib import Path

import pytest

from rolecall.workloads.cache import build_once


def test_it_is_built_once(tmp_path: Path) -> None:
    drafts: list[Path] = []

    def build(draft: Path) -> None:
        drafts.append(draft)
        (draft / "numbers").write_text("1 2 3")

    first = build_once(tmp_path / "mine", "key", build)
    assert build_once(tmp_path / "mine", "key", build) == first
    assert (first / "numbers").read_text() == "1 2 3"
    assert len(drafts) == 1
    assert not drafts[0].exists()


def test_a_build_that_fails_leaves_nothing_to_be_taken_for_whole(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "half").write_text("1")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        build_once(tmp_path, "key", fail)
    assert not (tmp_path / "key").exists()
    whole = build_once(tmp_path, "key", lambda draft: None)
    assert list(whole.iterdir()) == []
