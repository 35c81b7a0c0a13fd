"""Checks on a node before the rendezvous, without torch."""

import subprocess
import sys
from collections.abc import Callable, Iterator
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


_THEIRS = """
from collections import OrderedDict
from torch import nn

def net(classes, width):
    blocks = {"body": nn.Conv2d(3, width, 1), "pool": nn.AdaptiveAvgPool2d(1), "head": nn.Linear(width, classes)}
    return nn.Sequential(OrderedDict(blocks))

def loose(classes, width):
    return nn.Linear(width, classes)
"""


@pytest.fixture
def custom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Params]]:
    """The parameters of a job with a custom model, of a width that no memory could hold."""
    (tmp_path / "their_cut_nets.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])

    def make(*cuts: str, function: str = "net") -> Params:
        model = {"builder": f"their_cut_nets:{function}", "arguments": {"width": 2**40}}
        data = {"synthetic": {"images": 256, "classes": 10}}
        return Params.model_validate({"data": data, "model": model, "cuts": cuts})

    yield make
    sys.modules.pop("their_cut_nets", None)


def test_a_cut_that_a_custom_model_does_not_have_is_refused_before_it_has_weights(
    custom: Callable[..., Params],
) -> None:
    check_node(custom("head"), Role.STAGE)
    with pytest.raises(InputError, match=r"^cuts: the model has no block layer3\.0 to cut before; valid: pool, head$"):
        check_node(custom("layer3.0"), Role.STAGE)
    with pytest.raises(InputError, match="returned a value of the type Linear, not nn"):
        check_node(custom("pool", function="loose"), Role.STAGE)
    check_node(custom("layer3.0"), Role.MASTER)


def test_a_stage_without_weights_is_refused_before_the_model_has_weights(custom: Callable[..., Params]) -> None:
    with pytest.raises(InputError, match=r"only pool, without weights to train; .* with weights: body, head$"):
        check_node(custom("pool", "head"), Role.STAGE)


def test_what_the_master_imports_is_free_of_torch() -> None:
    script = (
        "import sys, rolecall.workloads.resnet_pipeline; print(sorted({'torch', 'torchvision'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"
