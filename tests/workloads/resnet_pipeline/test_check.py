"""Checks on a node before the rendezvous, without torch."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.pictures import write_folder, write_idx

from rolecall.spec.errors import InputError
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.check import check_node
from rolecall.workloads.resnet_pipeline.params import Params


def params(protocol: str = "1f1b", **data: object) -> Params:
    return Params.model_validate({"data": data, "protocol": protocol})


def test_every_source_is_looked_at(tmp_path: Path) -> None:
    folder, idx = str(write_folder(tmp_path / "folder", 3, 24)), write_idx(tmp_path / "idx", 3, 24)
    check_node(params(train=folder, validation=folder), Role.STAGE)
    check_node(params(train=idx, test=idx), Role.STAGE)
    for split in ("train", "validation", "test"):
        with pytest.raises(InputError, match="nowhere does not exist"):
            check_node(params(**{"train": folder, split: str(tmp_path / "nowhere")}), Role.STAGE)


@pytest.mark.parametrize(
    ("protocol", "reader", "other"), [("1f1b", Role.STAGE, Role.MASTER), ("tutorial", Role.MASTER, Role.STAGE)]
)
def test_only_who_reads_the_images_needs_them(tmp_path: Path, protocol: str, reader: Role, other: Role) -> None:
    given = params(protocol, train=str(tmp_path / "nowhere"))
    check_node(given, other)
    with pytest.raises(InputError, match="nowhere does not exist"):
        check_node(given, reader)


def test_what_the_master_imports_is_free_of_torch() -> None:
    script = (
        "import sys, rolecall.workloads.resnet_pipeline; print(sorted({'torch', 'torchvision'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"
