# pyright: standard
"""`resnet-pipeline` in one process, written without the service: what every gang must reproduce."""

import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
from torch import nn
from torchvision.transforms import v2

from rolecall.kit.data_order import DataOrder
from rolecall.kit.images.loader import TrainBatches, eval_batches, open_splits
from rolecall.workloads.resnet_pipeline.params import Params

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@dataclass
class Reference:
    """Every step's mean loss over the global batch, and the state after the last step."""

    losses: list[float] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)


def train_alone(params: Params) -> Reference:
    """Plain PyTorch: torchvision's whole model, micro-batches in order, their gradients added up.

    In channels last, as the stages compute: in float32 either layout is 1e-3 away from the true gradients of these few
    images, so that only like kernels can be compared.
    """
    batches = global_batches(params)
    first = whole_model(params, batches.classes)
    models = [first, *(copy.deepcopy(first) for _ in range(params.replicas - 1))]
    arguments = params.optimizer.model_dump(exclude={"name"})
    optimizers = [OPTIMIZERS[params.optimizer.name](model.parameters(), **arguments) for model in models]
    reference = Reference()
    for step in range(params.max_steps or 0):
        shares = zip(*(part.chunk(params.replicas) for part in batches.at(step)), strict=True)
        losses = [backward(params, model, *share) for model, share in zip(models, shares, strict=True)]
        average(models)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        reference.losses.append(sum(losses) / len(losses))
    reference.state = {name: value.detach() for name, value in first.state_dict().items()}
    return reference


def whole_model(params: Params, classes: int) -> nn.Module:
    dtype = torch.float64 if params.precision == "float64" else torch.float32
    norm = nn.BatchNorm2d if params.norm == "batch" else lambda channels: nn.GroupNorm(32, channels)
    torch.manual_seed(params.seed)
    assert isinstance(params.model, str)
    model = torchvision.models.get_model(params.model, num_classes=classes, norm_layer=norm)
    return model.to(dtype).to(memory_format=torch.channels_last)


def backward(params: Params, model: nn.Module, pixels: torch.Tensor, labels: torch.Tensor) -> float:
    """Leaves the gradients of the mean loss, which it returns."""
    total = 0.0
    micro_batches = (part.chunk(params.micro_batches) for part in (pixels, labels))
    for images, target in zip(*micro_batches, strict=True):
        logits = model(inputs(params, images, model.get_parameter("fc.weight").dtype))
        loss = mean_loss(params, logits, target) / params.micro_batches
        loss.backward()
        total += loss.item()
    return total


def mean_loss(params: Params, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Squared errors as in PyTorch's RPC pipeline tutorial."""
    if params.loss == "mse":
        one_hot = torch.zeros(logits.shape, dtype=logits.dtype).scatter_(1, labels.view(-1, 1), 1)
        return nn.MSELoss()(logits, one_hot)
    return F.cross_entropy(logits, labels, label_smoothing=params.label_smoothing)


@torch.no_grad()
def scores(params: Params, state: dict[str, torch.Tensor]) -> dict[str, float]:
    """Loss and accuracy of a model's state on the validation images, in one batch."""
    split = open_splits(params.data, params.seed)["validation"]
    resized = v2.Compose([v2.Resize(params.data.size), v2.CenterCrop(params.data.size)])
    ((pixels, labels),) = eval_batches(split, slice(None), resized, len(split), 0)
    model = whole_model(params, len(split.source.classes)).eval()
    model.load_state_dict(state)
    logits = model(inputs(params, pixels, model.get_parameter("fc.weight").dtype))
    accuracy = float((logits.argmax(1) == labels).double().mean())
    return {"validation_loss": float(mean_loss(params, logits, labels)), "validation_accuracy": accuracy}


@torch.no_grad()
def average(models: list[nn.Module]) -> None:
    """Gradients and running statistics become their means over the replicas."""
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack([parameter.grad for parameter in parameters]).mean(0)
        for parameter in parameters:
            parameter.grad.copy_(mean)
    for buffers in zip(*(model.buffers() for model in models), strict=True):
        if buffers[0].is_floating_point():
            mean = torch.stack(buffers).mean(0)
            for buffer in buffers:
                buffer.copy_(mean)


def inputs(params: Params, pixels: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    images = v2.functional.normalize(pixels.to(dtype) / 255, list(params.data.mean), list(params.data.std))
    return images.contiguous(memory_format=torch.channels_last)


@dataclass
class GlobalBatches:
    classes: int
    batches: TrainBatches
    steps: int

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.batches.at(*divmod(step, self.steps))


def global_batches(params: Params) -> GlobalBatches:
    train = open_splits(params.data, params.seed)["train"]
    order = DataOrder(len(train), params.batch_size, params.seed)
    resized = v2.Compose([v2.Resize(params.data.size), v2.CenterCrop(params.data.size)])
    batches = TrainBatches(train, resized, order, rank=0, replicas=1, processes=0)
    return GlobalBatches(len(train.source.classes), batches, len(train) // params.batch_size)
