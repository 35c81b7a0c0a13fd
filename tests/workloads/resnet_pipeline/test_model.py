"""The chain of blocks is torchvision's model, however it is cut."""

from itertools import pairwise

import pytest
import torch

from rolecall.workloads.resnet_pipeline.model import Blocks, build_resnet, torchvision_name
from rolecall.workloads.resnet_pipeline.params import block_names


@pytest.mark.parametrize(("model", "norm"), [("resnet18", "group"), ("resnet50", "batch")])
def test_shards_in_a_row_are_the_whole_model(model: str, norm: str) -> None:
    torch.manual_seed(0)
    whole, images = build_resnet(model, 5, norm).eval(), torch.rand(2, 3, 32, 32)
    names = block_names(model)
    shards = [Blocks(whole, names[begin:end]) for begin, end in pairwise([0, 1, 4, 7, len(names)])]
    features = images
    for shard in shards:
        features = shard(features)
    torch.testing.assert_close(features, whole(images), rtol=0, atol=0)
    found = [torchvision_name(name) for shard in shards for name in shard.state_dict()]
    assert found == list(whole.state_dict())
