# pyright: standard
"""Split backward passes give the gradients of whole ones."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from rolecall.kit.split_backward import WeightPass, split_backward


def network() -> nn.Sequential:
    """Convolutions with and without bias, with groups, and one that runs twice."""
    torch.manual_seed(0)
    twice = nn.Conv2d(6, 6, 3, padding=2, dilation=2)
    grouped = nn.Conv2d(3, 6, 3, stride=2, padding=1, groups=3, bias=False)
    return nn.Sequential(
        grouped, nn.BatchNorm2d(6), nn.ReLU(inplace=True), twice, twice, nn.Flatten(), nn.LazyLinear(2)
    )


@pytest.mark.parametrize("bfloat16", [False, True])
def test_two_micro_batches_have_the_same_gradients(bfloat16: bool) -> None:
    whole = network()
    whole(torch.zeros(2, 3, 8, 8))
    whole = whole if bfloat16 else whole.double()
    split, deferred = copy.deepcopy(whole), list[WeightPass]()
    split_backward(split, deferred)
    for number in range(2):
        images = torch.rand(2, 3, 8, 8, dtype=torch.float32 if bfloat16 else torch.float64)
        given = [images.clone().requires_grad_() for _ in range(2)]
        for model, inputs in zip((whole, split), given, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                outputs = model(inputs)
            outputs.sum().backward()
        assert len(deferred) == 3
        assert number or split[0].weight.grad is None
        torch.testing.assert_close(given[0].grad, given[1].grad)
        for accumulate in deferred:
            accumulate()
        deferred.clear()
    # Bfloat16 has 8 bits, and the order in which the gradients of the convolution that runs twice are added differs.
    tolerance = 0.02 if bfloat16 else 1e-12
    assert not any(weight.grad.requires_grad for weight in split.parameters() if weight.grad is not None)
    for expected, found in zip(whole.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(dict(split.named_buffers()), dict(whole.named_buffers()))


def test_images_need_no_gradient() -> None:
    model, deferred = nn.Sequential(nn.Conv2d(3, 4, 3)), list[WeightPass]()
    split_backward(model, deferred)
    model(torch.rand(1, 3, 5, 5)).sum().backward()
    deferred.pop()()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("kind", ["frozen", "computed", "hook", "hook on .grad", "padding", "image"])
def test_other_convolutions_are_not_split(kind: str) -> None:
    conv, deferred = nn.Conv2d(3, 4, 3, padding="same" if kind == "padding" else 0), list[WeightPass]()
    match kind:
        case "frozen":
            conv.weight.requires_grad_(False)
        case "computed":
            parametrizations.weight_norm(conv)
        case "hook":
            conv.weight.register_hook(lambda gradient: gradient * 2)
        case "hook on .grad":
            conv.weight.register_post_accumulate_grad_hook(lambda weight: None)
        case _:
            pass  # The padding or the image differs.
    split_backward(conv, deferred)
    images = torch.rand(1, 3, 5, 5)
    conv(images[0] if kind == "image" else images).sum().backward()
    assert deferred == []
