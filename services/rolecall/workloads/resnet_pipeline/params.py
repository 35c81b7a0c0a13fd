"""What a user may say about a `resnet-pipeline` job. Torch-free; docstrings are the API's descriptions."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit.builders import Builder
from rolecall.kit.divisors import divisors, nearest, nearest_multiples
from rolecall.kit.images.params import Images
from rolecall.kit.params import (
    Adam,
    AdamW,
    BatchSize,
    Fraction,
    LrSchedule,
    Name,
    Precision,
    RenamedProtocol,
    Replicas,
    Sgd,
    TrainingParams,
)
from rolecall.spec.errors import InputError

_LAYERS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
# Torchvision's stem and layers halve height and width five times.
_SHRINKS = 32
MOST_MICRO_BATCHES = 256


def block_names(model: str) -> tuple[str, ...]:
    """What a ResNet can be cut between, in order: `stem`, torchvision's names of the residual blocks, `head`."""
    layers = enumerate(_LAYERS[model], start=1)
    return ("stem", *(f"layer{layer}.{block}" for layer, blocks in layers for block in range(blocks)), "head")


class Params(TrainingParams):
    """The parameters of a `resnet-pipeline` job."""

    data: Images
    """The images."""
    model: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"] | Builder = "resnet18"
    """Which of torchvision's ResNets (He et al., 2015), or a model of the job's own: a function that is called with the
    number of classes and gives an `nn.Sequential` from images [b, 3, size, size] to logits [b, classes]; it is cut
    between its children."""
    norm: Literal["batch", "group"] = "batch"
    """Of torchvision's ResNets. `batch`: BatchNorm over each micro-batch, so that their number changes the result;
    `group`: GroupNorm (Wu and He, 2018) with 32 groups, over each image alone."""
    label_smoothing: Fraction = 0.0
    """The share of the target that is spread over all classes."""
    batch_size: BatchSize = 128
    """Images per step over all replicas together. What doesn't fill a batch is left out of its epoch."""
    micro_batches: Annotated[int, Field(ge=1, le=MOST_MICRO_BATCHES)] = 4
    """Into how many parts each replica's share of a batch is split. More keep the stages busier, smaller ones cost more
    per image."""
    replicas: Replicas = 1
    """How many pipelines share each batch; `roles.stage` counts the stages of all of them."""
    cuts: Annotated[tuple[Name, ...], Field(max_length=1024)] | None = None
    """The blocks with which the second and every later stage begins, e.g. `["layer3.0"]` for two stages. Without it the
    stages measure what each block costs them, and the cuts make the slowest stage as fast as it can be."""
    protocol: Annotated[Literal["1f1b", "tutorial"], RenamedProtocol] = "1f1b"
    """`1f1b`: stages hand activations and gradients to each other, each alternating one forward and one backward pass
    (Narayanan et al., 2021), and own their optimizers; `tutorial`: with the tools of torch's RPC pipeline tutorial,
    RRefs, distributed autograd and DistributedOptimizer, all forward passes before all backward passes."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = Sgd(
        name="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4
    )
    """The optimizer: `sgd`, `adam` or `adamw`."""
    precision: Precision = "float32"
    """The type of weights and arithmetic. `bfloat16` computes in it where that is safe (torch.autocast) and keeps
    float32 weights; a GPU that has none is an error. `float64` is for proofs of parity."""

    @property
    def micro_batch_size(self) -> int:
        """Images in one micro-batch."""
        return self.batch_size // (self.replicas * self.micro_batches)

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        share, rest = divmod(self.batch_size, self.replicas)
        if rest:
            raise ValueError(
                f"batch_size {self.batch_size} can't be shared by {self.replicas} replicas; nearest legal: "
                f"{nearest_multiples(self.replicas, self.batch_size)}"
            )
        if share % self.micro_batches:
            legal = [count for count in divisors(share) if count <= MOST_MICRO_BATCHES]
            raise ValueError(
                f"micro_batches {self.micro_batches} does not divide the {share} images of each replica; nearest "
                f"legal: {nearest(legal, self.micro_batches)}"
            )
        one_value = self.micro_batch_size == 1 and self.data.size <= _SHRINKS
        if isinstance(self.model, str) and self.norm == "batch" and one_value:
            raise ValueError(
                f"norm: batch needs more than one value per channel, and a micro-batch of one image of "
                f"{self.data.size} pixels ends with one; take fewer micro_batches, a larger batch_size or norm: group"
            )
        return self

    @model_validator(mode="after")
    def _legal_cuts(self) -> Self:
        if self.cuts is None or isinstance(self.model, Builder):
            return self
        try:
            places(self.cuts, block_names(self.model))
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.model, Builder) and self.norm != "batch":
            raise ValueError("norm is for torchvision's ResNets; a model of the job's own has its own, leave norm out")
        if self.protocol == "tutorial" and self.lr_schedule != LrSchedule():
            raise ValueError("protocol: tutorial keeps its learning rates constant; leave lr_schedule out")
        if self.protocol == "tutorial" and self.replicas > 1:
            raise ValueError("protocol: tutorial has one replica; take protocol: 1f1b for more")
        if self.early_stopping and not self.data.has_validation:
            raise ValueError(
                "early_stopping needs validation images; set data.validation to a share above 0, or to a source"
            )
        return self


def places(cuts: Sequence[str], names: Sequence[str]) -> list[int]:
    """The places of the blocks that begin the later stages; raises `InputError` for cuts that the model can't have."""
    if unknown := [cut for cut in cuts if cut not in names[1:]]:
        raise InputError(
            f"cuts: the model has no block {', '.join(unknown)} to cut before; legal: {', '.join(names[1:])}"
        )
    found = [names.index(cut) for cut in cuts]
    if found != sorted(set(found)):
        raise InputError(f"cuts must follow the model's order, each once: {', '.join(names[1:])}")
    return found
