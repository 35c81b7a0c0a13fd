"""The chain of blocks is torchvision's model, however it is cut."""

from collections import OrderedDict
from itertools import pairwise

import pytest
import torch
from torch import nn

from rolecall.workloads.resnet_pipeline.model import Blocks, blocks_of, build_resnet
from rolecall.workloads.resnet_pipeline.params import block_names


def assert_cut(whole: nn.Module, names: tuple[str, ...], bounds: list[int]) -> None:
    images = torch.rand(2, 3, 32, 32)
    shards = [Blocks(whole, names[begin:end]) for begin, end in pairwise(bounds)]
    features = images
    for shard in shards:
        features = shard(features)
    torch.testing.assert_close(features, whole(images), rtol=0, atol=0)
    assert [shard.model_names[name] for shard in shards for name in shard.state_dict()] == list(whole.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(("model", "norm"), [("resnet18", "group"), ("resnet50", "batch")])
def test_shards_in_a_row_are_the_whole_resnet(model: str, norm: str) -> None:
    names = block_names(model)
    assert_cut(build_resnet(model, 5, norm).eval(), names, [0, 1, 4, 7, len(names)])


def test_any_sequential_is_cut_between_its_children() -> None:
    named: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Conv2d(3, 4, 3), middle=nn.Sequential(nn.ReLU(), nn.Flatten()), head=nn.LazyLinear(5)
    )
    whole = nn.Sequential(named)
    whole(torch.rand(2, 3, 32, 32))
    assert tuple(blocks_of(whole)) == ("stem", "middle", "head")
    assert_cut(whole, ("stem", "middle", "head"), [0, 1, 3])
