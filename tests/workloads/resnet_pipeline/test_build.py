# pyright: standard
"""One stage's arithmetic, without a gang."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.pictures import write_idx
from torchvision.models.resnet import BasicBlock

from rolecall.spec.errors import CheckpointError, InputError
from rolecall.workloads.resnet_pipeline import build
from rolecall.workloads.resnet_pipeline.build import (
    Dataset,
    DatasetInfo,
    ModelPart,
    block_costs,
    given_cuts,
    require_fit,
    whole_model,
)
from rolecall.workloads.resnet_pipeline.model import blocks_of
from rolecall.workloads.resnet_pipeline.params import Params, block_names

NAMES = block_names("resnet18")
CPU = torch.device("cpu")


def params(**changes: object) -> Params:
    given = {"data": {"train": str(Path("pictures")), "size": 32}, "batch_size": 4, "micro_batches": 1, **changes}
    return Params.model_validate(given)


def stepped(names: tuple[str, ...], **changes: object) -> ModelPart:
    """A last part after one step."""
    part = ModelPart(params(**changes), 3, names, CPU)
    features = torch.rand(4, 512, 2, 2, generator=torch.Generator().manual_seed(1))
    part.forward_loss(0, features, torch.tensor([0, 1, 2, 0]))
    part.backward(0)
    part.update(0.5)
    return part


def test_a_state_goes_to_shards_of_other_cuts() -> None:
    written = stepped(NAMES[-2:]).state()
    alone = ModelPart(params(seed=7), 3, NAMES[-1:], CPU)
    alone.restore(written)
    restored = alone.state()
    assert {name for name in restored if "momentum" in name} == {
        f"optimizer/fc.{part}/momentum_buffer" for part in ("weight", "bias")
    }
    torch.testing.assert_close(restored, {name: written[name] for name in restored}, rtol=0, atol=0)


def test_a_state_that_lacks_a_tensor_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"lacks model/layer4\.1\.conv1\.weight and 13 more"):
        ModelPart(params(), 3, NAMES[-2:], CPU).restore({})


def test_bfloat16_computes_in_it_and_keeps_float32_weights() -> None:
    part = ModelPart(params(precision="bfloat16"), 3, NAMES[:2], CPU)
    outputs = part.forward(0, torch.rand(4, 3, 32, 32), needs_input_gradient=False)
    assert outputs.dtype == torch.bfloat16
    assert part.backward(0, torch.ones_like(outputs)) is None
    part.update(1.0)
    assert {value.dtype for value in part.weights().values()} == {torch.float32, torch.int64}


def test_inference_leaves_statistics_alone() -> None:
    part = ModelPart(params(), 3, NAMES, CPU)
    before = part.weights()
    with part.inference():
        assert not part.compute(torch.rand(4, 3, 32, 32)).requires_grad
    torch.testing.assert_close(part.weights(), before, rtol=0, atol=0)
    assert part.blocks.training


def test_a_model_of_the_jobs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "their_nets.py").write_text(
        "from torch import nn\n"
        "def small(classes, width):\n"
        "    return nn.Sequential(nn.Conv2d(3, width, 32), nn.Flatten(), nn.Linear(width, classes))\n"
        "def uncut(classes):\n"
        "    return nn.Linear(1, classes)\n"
    )
    small = {"builder": "their_nets:small", "arguments": {"width": 4}}
    model = whole_model(params(model=small), 3)
    assert list(blocks_of(model)) == ["0", "1", "2"]
    part = ModelPart(params(model=small), 3, ["2"], CPU)
    torch.testing.assert_close(part.weights()["2.weight"], model.get_parameter("2.weight").detach(), rtol=0, atol=0)
    with pytest.raises(InputError, match=r"their_nets:uncut returned a value of the type Linear, not nn\.Sequential"):
        whole_model(params(model={"builder": "their_nets:uncut"}), 3)


def test_every_block_has_its_cost(tmp_path: Path) -> None:
    costs = block_costs(params(), 3, CPU, tmp_path)
    assert len(costs) == len(NAMES)
    assert min(costs) > 0


_THEIRS = """
from torch import nn

def small(classes):
    return nn.Sequential(
        nn.InstanceNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 4, 16),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 5, 2),
        nn.Flatten(),
        nn.ReLU(inplace=True),
        nn.Linear(5, classes),
    )

def frozen(classes):
    model = small(classes)
    model[2].requires_grad_(False)
    return model
"""


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "their_plain_nets.py").write_text(_THEIRS)
    monkeypatch.setenv("ROLECALL_PLUGINS", str(tmp_path))
    monkeypatch.setattr(sys, "path", sys.path[:])
    yield
    sys.modules.pop("their_plain_nets", None)


def custom(function: str, size: int = 17, **changes: object) -> Params:
    data = {"train": str(Path("pictures")), "size": size}
    return params(model={"builder": f"their_plain_nets:{function}"}, data=data, precision="float64", **changes)


@pytest.mark.usefixtures("plugins")
def test_the_cost_of_blocks_in_place_and_without_weights(tmp_path: Path) -> None:
    costs = block_costs(custom("small"), 3, CPU, tmp_path)
    assert len(costs) == 8
    assert min(costs) > 0


@pytest.mark.usefixtures("plugins")
def test_a_model_that_does_not_fit_the_size_of_the_images_is_refused() -> None:
    fitting, larger = custom("small"), custom("small", size=18)
    require_fit(fitting, whole_model(fitting, 3), CPU)
    expected = (
        r"^their_plain_nets:small: block 7 \(Linear\) fails on images of 18 x 18: RuntimeError: mat1 and mat2 .*; "
        r"change data\.size or the model$"
    )
    with pytest.raises(InputError, match=expected):
        require_fit(larger, whole_model(larger, 3), CPU)


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("function", ["small", "frozen"])
@pytest.mark.parametrize("cuts", [(3, 6), (4, 7)], ids=str)
def test_stages_that_begin_in_place_or_after_flatten_compute_the_models_gradients(
    function: str, cuts: tuple[int, int]
) -> None:
    chosen = custom(function)
    model = whole_model(chosen, 3).double()
    images = torch.rand(4, 3, 17, 17, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0])
    expected = F.cross_entropy(model(images.clone()), labels)
    expected.backward()
    names = [str(index) for index in range(8)]
    parts = [ModelPart(chosen, 3, names[a:b], CPU) for a, b in pairwise((0, *cuts, 8))]
    for part in parts:
        part.split_backward()
    features = images.clone()
    for index, part in enumerate(parts[:-1]):
        features = part.forward(0, features, needs_input_gradient=index > 0).clone()
    torch.testing.assert_close(parts[-1].forward_loss(0, features, labels), expected.detach())
    gradient = None
    for part in reversed(parts):
        gradient = part.backward(0, gradient)
        part.backward_weights(0)
    found = {part.blocks.model_names[name]: p.grad for part in parts for name, p in part.blocks.named_parameters()}
    torch.testing.assert_close(found, {name: weight.grad for name, weight in model.named_parameters()})


def test_a_stage_computes_on_the_received_features_themselves() -> None:
    part = ModelPart(params(), 3, NAMES[-1:], CPU)
    given = list[int]()
    part.blocks.chain[0].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].data_ptr()))
    features = torch.rand(4, 512, 2, 2).contiguous(memory_format=torch.channels_last)
    part.forward(0, features, needs_input_gradient=True)
    assert given == [features.data_ptr()]


def test_cuts_that_leave_a_stage_without_weights_are_refused() -> None:
    blocks = {"conv": True, "relu": False, "pool": False, "conv2": True, "flatten": False, "head": True}
    assert given_cuts(custom("small", cuts=["relu", "head"]), blocks) == [1, 5]
    expected = (
        r"^cuts: a stage would have only relu, pool, without weights to train; each stage needs one of the blocks with "
        r"weights: conv, conv2, head$"
    )
    with pytest.raises(InputError, match=expected):
        given_cuts(custom("small", cuts=["relu", "conv2"]), blocks)
    with pytest.raises(InputError, match="a stage would have only relu, without weights"):
        given_cuts(custom("small", cuts=["head"]), {"relu": False, "head": True})


@pytest.mark.slow
def test_equal_blocks_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[str] = []
    forward = BasicBlock.forward

    def counting(self: BasicBlock, features: torch.Tensor) -> torch.Tensor:
        blocks.append(repr(self))
        return forward(self, features)

    monkeypatch.setattr(BasicBlock, "forward", counting)
    costs = block_costs(params(model="resnet34"), 3, CPU, tmp_path)
    names = block_names("resnet34")
    own = {name: cost for name, cost in zip(names, costs, strict=True) if name.startswith("layer2.")}
    assert len(blocks) == 2 * len(set(costs[1:-1])) < 2 * (len(names) - 2)
    assert own["layer2.1"] == own["layer2.2"] == own["layer2.3"] != own["layer2.0"]


@pytest.mark.slow
def test_the_costs_of_a_known_model_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = block_costs(params(), 3, CPU, tmp_path)
    others = block_costs(params(norm="group"), 3, CPU, tmp_path)
    monkeypatch.setattr(build, "_measure", lambda *_: [1.0] * len(NAMES))
    assert block_costs(params(), 3, CPU, tmp_path) == costs
    assert block_costs(params(norm="group"), 3, CPU, tmp_path) == others
    assert block_costs(params(), 4, CPU, tmp_path) == [1.0] * len(NAMES), "another head"


@pytest.mark.parametrize("content", ["", "[1]", "[0, 0]", '{"a": 1}', "5", '["x"]', "[NaN]", None])
def test_costs_that_a_job_has_broken_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    monkeypatch.setattr(build, "_measure", lambda *_: [1.0] * len(NAMES))
    block_costs(params(), 3, CPU, tmp_path)
    (file,) = tmp_path.glob("*/*/costs.json")
    file.unlink()
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(build, "_measure", lambda *_: [2.0] * len(NAMES))
    assert block_costs(params(), 3, CPU, tmp_path) == [2.0] * len(NAMES)
    assert "costs.json doesn't hold the costs of" in caplog.text


def test_replicas_see_from_their_infos_that_a_split_has_other_images(tmp_path: Path) -> None:
    infos: list[DatasetInfo] = []
    for node, seed in (("a", 0), ("b", 0), ("c", 1)):
        held_out = write_idx(tmp_path / node / "held-out", 9, 16, seed)
        data = {"train": write_idx(tmp_path / node, 9, 16), "validation": held_out, "size": 16}
        infos.append(Dataset(params(data=data), replica=0, device=CPU).info)
    assert infos[0] == infos[1] != infos[2]
    assert infos[0].images == infos[2].images
