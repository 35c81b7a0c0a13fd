# pyright: standard
"""The two parts of ResNet-50, each on a worker."""

import threading

from torch import Tensor, nn
from torch.distributed import rpc
from torchvision.models import resnet50


class Part(nn.Module):
    """The first part, up to `layer2`, or the second one. It computes one micro-batch at a time."""

    def __init__(self, index: int, classes: int) -> None:
        super().__init__()
        whole = resnet50(num_classes=classes)
        first = (whole.conv1, whole.bn1, whole.relu, whole.maxpool, whole.layer1, whole.layer2)
        second = (whole.layer3, whole.layer4, whole.avgpool, nn.Flatten(), whole.fc)
        self._layers = nn.Sequential(*(first, second)[index])
        self._lock = threading.Lock()

    def forward(self, features: "rpc.RRef[Tensor]") -> Tensor:
        """The output for the images or features of a micro-batch, which may be on another worker."""
        given = features.to_here()
        with self._lock:
            return self._layers(given)

    def weights(self) -> list["rpc.RRef[nn.Parameter]"]:
        """References to the weights, for `DistributedOptimizer`."""
        return [rpc.RRef(weight) for weight in self.parameters()]
