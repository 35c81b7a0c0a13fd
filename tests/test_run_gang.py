# pyright: reportPrivateUsage=false
"""Errors of `rolecall.testing.run_gang`: incorrect use and failed workers."""

from pathlib import Path

import pytest

from rolecall.kit import Role
from rolecall.testing import gang, run_gang

ROLES = {Role.PARAMETER_SERVER: 1, Role.TRAINER: 1}


def test_a_folder_serves_one_gang(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    with pytest.raises(FileExistsError, match=r"a gang has already run in .*; use a new folder for each gang"):
        run_gang("rnn-lm", {}, ROLES, tmp_path)


@pytest.mark.slow
def test_the_failure_of_a_worker_is_raised(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"nowhere\.txt does not exist on this node"):
        run_gang("rnn-lm", {"text": {"train": str(tmp_path / "nowhere.txt")}}, ROLES, tmp_path)


def test_a_worker_that_died_before_its_first_report_has_no_losses(tmp_path: Path) -> None:
    (tmp_path / "losses-trainer-0").write_text("0.5\n0.25\n")
    assert gang._collect(tmp_path, gang._plan(ROLES)).losses == {"trainer-0": [0.5, 0.25]}


def test_the_workers_of_a_role_get_its_gpus_in_turn() -> None:
    plan = gang._plan({Role.PARAMETER_SERVER: 1, Role.TRAINER: 3}, gpus={Role.TRAINER: ["GPU-a", "GPU-b"]})
    gpus = {role: [worker.gpu for worker in plan.workers if worker.role is role] for role in ROLES}
    assert gpus == {Role.PARAMETER_SERVER: [None], Role.TRAINER: ["GPU-a", "GPU-b", "GPU-a"]}
