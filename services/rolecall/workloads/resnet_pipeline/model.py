# pyright: standard
"""Torchvision's ResNets as chains of blocks. Exported models contain a copy of this file.

Requires torch and torchvision, and for a custom model the package that builds it.
"""

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torchvision.models import ResNet
from torchvision.transforms import v2

_GROUPS = 32


def build_resnet(name: str, classes: int, norm: str) -> nn.Module:
    """Torchvision's model `name`, with BatchNorm (`batch`) or GroupNorm (`group`)."""
    layer = nn.BatchNorm2d if norm == "batch" else _group_norm
    return torchvision.models.get_model(name, num_classes=classes, norm_layer=layer)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(_GROUPS, channels)


class Stem(nn.Module):
    """The layers before the residual blocks: images [b, 3, s, s] to features [b, 64, s/4, s/4]."""

    def __init__(self, resnet: ResNet) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu, self.maxpool = resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The first layers of torchvision's `ResNet.forward`."""
        return self.maxpool(self.relu(self.bn1(self.conv1(images))))


class Head(nn.Module):
    """The layers after the residual blocks: features [b, f, h, w] to logits [b, classes]."""

    def __init__(self, resnet: ResNet) -> None:
        super().__init__()
        self.avgpool, self.fc = resnet.avgpool, resnet.fc

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The last layers of torchvision's `ResNet.forward`."""
        return self.fc(torch.flatten(self.avgpool(features), 1))


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a model in order, between which it can be cut: children of an `nn.Sequential`, or ResNet blocks."""
    if isinstance(model, nn.Sequential):
        return dict(model.named_children())
    layers = [(name, layer) for name, layer in model.named_children() if name.startswith("layer")]
    blocks = {f"{name}.{number}": block for name, layer in layers for number, block in layer.named_children()}
    resnet = cast(ResNet, model)
    return {"stem": Stem(resnet), **blocks, "head": Head(resnet)}


class Blocks(nn.Module):
    """Consecutive blocks of a model."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        super().__init__()
        every = blocks_of(model)
        self.chain = nn.ModuleList([every[name] for name in names])
        whole_names = {id(tensor): name for name, tensor in model.state_dict(keep_vars=True).items()}
        self.model_names = {name: whole_names[id(tensor)] for name, tensor in self.state_dict(keep_vars=True).items()}
        """Maps names of parameters and buffers in this module to their names in the whole model."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        for block in self.chain:
            features = block(features)
        return features


def resize_and_crop(size: int) -> v2.Transform:
    """Resize the shorter side and crop the center to a square."""
    return v2.Compose([v2.Resize(size), v2.CenterCrop(size)])


def normalized(images: torch.Tensor, mean: Iterable[float], std: Iterable[float], dtype: torch.dtype) -> torch.Tensor:
    """Bytes [b, 3, s, s] as the model's normalized inputs."""
    middle, deviation = (
        torch.tensor(tuple(values), dtype=dtype, device=images.device).view(1, 3, 1, 1) for values in (mean, std)
    )
    return (images.to(dtype) / 255 - middle) / deviation


class Classifier:
    """A trained model with its preprocessing."""

    def __init__(self, model: nn.Module, about: dict) -> None:
        self.model = model.eval()
        self.classes: list[str] = about["classes"]
        self._about = about

    def predict(self, images: Iterable[Image.Image]) -> torch.Tensor:
        """The probability of each class, [b, classes]."""
        prepare = v2.Compose([resize_and_crop(self._about["size"]), v2.RGB(), v2.PILToTensor()])
        pixels = torch.stack([prepare(image) for image in images])
        weight = next(self.model.parameters())
        inputs = normalized(pixels.to(weight.device), self._about["mean"], self._about["std"], weight.dtype)
        with torch.inference_mode():
            logits = self.model(inputs)
        return logits.softmax(-1)


def load(folder: str | Path) -> Classifier:
    """Load the model of an unpacked `model.zip`."""
    about = json.loads(Path(folder, "model.json").read_text())
    model = _described(about)
    weights = load_file(Path(folder, "model.safetensors"))
    dtype = next(value.dtype for value in weights.values() if value.is_floating_point())
    model.to(dtype).load_state_dict(weights)
    return Classifier(model, about)


def _described(about: dict) -> nn.Module:
    own, classes = about["model"], len(about["classes"])
    if isinstance(own, str):
        return build_resnet(own, classes, about["norm"])
    module, _, function = own["builder"].partition(":")
    return getattr(importlib.import_module(module), function)(classes, **own["arguments"])
