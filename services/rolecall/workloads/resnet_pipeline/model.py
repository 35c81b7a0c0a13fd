"""Torchvision's ResNets as chains of blocks. Needs torch and torchvision, and nothing of Rolecall.

An exported model carries a copy of this file.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import torch
import torchvision
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torchvision.transforms import v2

_GROUPS = 32


def build_resnet(name: str, classes: int, norm: str) -> nn.Module:
    """Torchvision's model `name`, with BatchNorm (`batch`) or GroupNorm (`group`)."""
    layer = nn.BatchNorm2d if norm == "batch" else _group_norm
    return torchvision.models.get_model(name, num_classes=classes, norm_layer=layer)


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(_GROUPS, channels)


class Stem(nn.Module):
    """What comes before the residual blocks: images [b, 3, s, s] to features [b, 64, s/4, s/4]."""

    def __init__(self, resnet: nn.Module) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu, self.maxpool = resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """As torchvision's ResNet does it."""
        return self.maxpool(self.relu(self.bn1(self.conv1(images))))


class Head(nn.Module):
    """What comes after them: features [b, f, h, w] to logits [b, classes]."""

    def __init__(self, resnet: nn.Module) -> None:
        super().__init__()
        self.avgpool, self.fc = resnet.avgpool, resnet.fc

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """As torchvision's ResNet does it."""
        return self.fc(torch.flatten(self.avgpool(features), 1))


class Blocks(nn.Module):
    """Consecutive blocks of a ResNet; parameters and buffers bear the names that they have in torchvision's model."""

    def __init__(self, resnet: nn.Module, names: Iterable[str]) -> None:
        super().__init__()
        for name in names:
            self._add(resnet, name)

    def _add(self, resnet: nn.Module, name: str) -> None:
        if name in ("stem", "head"):
            self.add_module(name, Stem(resnet) if name == "stem" else Head(resnet))
            return
        layer, block = name.split(".")
        if not hasattr(self, layer):
            self.add_module(layer, nn.ModuleDict())
        getattr(self, layer)[block] = resnet.get_submodule(name)

    def chain(self) -> list[nn.Module]:
        """The blocks in their order."""
        return [
            block
            for part in self.children()
            for block in (part.values() if isinstance(part, nn.ModuleDict) else [part])
        ]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """One block after another."""
        for block in self.chain():
            features = block(features)
        return features


def torchvision_name(name: str) -> str:
    """The name that a parameter or buffer of `Blocks` has in torchvision's model."""
    return name.removeprefix("stem.").removeprefix("head.")


def bring_to_size(size: int) -> v2.Transform:
    """Resizes the shorter side and crops the centre: an image of any form becomes a square."""
    return v2.Compose([v2.Resize(size), v2.CenterCrop(size)])


def normalized(images: torch.Tensor, mean: Iterable[float], std: Iterable[float], dtype: torch.dtype) -> torch.Tensor:
    """Bytes [b, 3, s, s] as the numbers that the model sees."""
    middle, deviation = (
        torch.tensor(tuple(values), dtype=dtype, device=images.device).view(1, 3, 1, 1) for values in (mean, std)
    )
    return (images.to(dtype) / 255 - middle) / deviation


class Classifier:
    """A trained model with all that it needs to know about images."""

    def __init__(self, resnet: nn.Module, about: dict) -> None:
        self.resnet = resnet.eval()
        self.classes: list[str] = about["classes"]
        self._about = about

    def predict(self, images: Iterable[Image.Image]) -> torch.Tensor:
        """[b, classes] the probability of each class."""
        prepare = v2.Compose([bring_to_size(self._about["size"]), v2.RGB(), v2.PILToTensor()])
        pixels = torch.stack([prepare(image) for image in images])
        dtype = next(self.resnet.parameters()).dtype
        with torch.inference_mode():
            logits = self.resnet(normalized(pixels, self._about["mean"], self._about["std"], dtype))
        return logits.softmax(-1)


def load(folder: str | Path) -> Classifier:
    """The model of an unpacked `model.zip`."""
    about = json.loads(Path(folder, "model.json").read_text())
    resnet = build_resnet(about["model"], len(about["classes"]), about["norm"])
    weights = load_file(Path(folder, "model.safetensors"))
    resnet.to(weights["fc.weight"].dtype).load_state_dict(weights)
    return Classifier(resnet, about)
