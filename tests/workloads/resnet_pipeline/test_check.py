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


def params(**data: object) -> Params:
    return Params.model_validate({"data": data})


def test_every_source_is_looked_at(tmp_path: Path) -> None:
    folder, idx = str(write_folder(tmp_path / "folder", 3, 24)), write_idx(tmp_path / "idx", 3, 24)
    check_node(params(train=folder, validation=folder), Role.STAGE)
    check_node(params(train=idx, test=idx), Role.STAGE)
    for split in ("train", "validation", "test"):
        with pytest.raises(InputError, match="nowhere does not exist"):
            check_node(params(**{"train": folder, split: str(tmp_path / "nowhere")}), Role.STAGE)


def test_only_stages_need_the_images() -> None:
    check_node(params(train="nowhere"), Role.MASTER)


def test_what_the_master_imports_is_free_of_torch() -> None:
    script = (
        "import sys, rolecall.workloads.resnet_pipeline; print(sorted({'torch', 'torchvision'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"
