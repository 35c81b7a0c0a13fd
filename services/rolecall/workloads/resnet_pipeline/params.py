"""Parameters of `resnet-pipeline` jobs. Torch-free; docstrings are the API's descriptions."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit import InputError, refuse
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
    Rpc,
    Sgd,
    TrainingParams,
)
from rolecall.kit.pipelining import Side, cut_indices

_LAYERS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
# Torchvision's stem and layers halve height and width five times.
_SHRINKS = 32
MAX_MICRO_BATCHES = 256


def block_names(model: str) -> tuple[str, ...]:
    """The blocks between which a ResNet can be split, in order: `stem`, torchvision's residual blocks, `head`."""
    layers = enumerate(_LAYERS[model], start=1)
    return ("stem", *(f"layer{layer}.{block}" for layer, blocks in layers for block in range(blocks)), "head")


class Params(TrainingParams):
    """The parameters of a `resnet-pipeline` job."""

    data: Images
    """The images."""
    model: Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"] | Builder = "resnet18"
    """One of torchvision's ResNets (He et al., 2015), or a custom model: a function that is called with the number of
    classes and returns an `nn.Sequential` from images [b, 3, size, size] to logits [b, classes]. It is split between
    its children."""
    norm: Literal["batch", "group"] = "batch"
    """Normalization of torchvision's ResNets. `batch`: BatchNorm over each micro-batch, so that `micro_batches` changes
    the result; `group`: GroupNorm (Wu and He, 2018) with 32 groups, over each image separately."""
    loss: Literal["cross-entropy", "mse"] = "cross-entropy"
    """The loss of training and scores. `cross-entropy`: of the softmax of the outputs, in nats; `mse`: the mean squared
    error between the outputs and one-hot labels, as in torch's RPC pipeline tutorial."""
    label_smoothing: Fraction = 0.0
    """Label smoothing of the cross-entropy: the share of the target that is distributed over all classes."""
    batch_size: BatchSize = 128
    """Images per step over all replicas. Images that don't fill a batch are dropped from their epoch."""
    micro_batches: Annotated[int, Field(ge=1, le=MAX_MICRO_BATCHES)] = 4
    """Number of parts into which each replica's share of a batch is split. More micro-batches reduce idle time, but
    smaller ones cost more per image."""
    replicas: Replicas = 1
    """Number of pipelines that share each batch; `roles.stage` is the number of stages of all pipelines together."""
    cuts: Annotated[tuple[Name, ...], Field(max_length=1024)] | None = None
    """First block of the second and every later stage, such as `["layer3.0"]` for two stages. By default, the stages
    measure the cost of each block, and the cuts minimize the time of the slowest stage."""
    protocol: Annotated[Literal["1f1b", "tutorial"], RenamedProtocol] = "1f1b"
    """Training protocol. With `1f1b`, stages send activations and gradients to each other, alternate forward and
    backward passes (Narayanan et al., 2021), postpone the gradients of weights (Qi et al., 2023), and have their own
    optimizers. `tutorial` uses the methods of torch's RPC pipeline tutorial: the driver reads the images, creates the
    stages' parts remotely, sends micro-batches as RRefs, and computes the loss of the gathered outputs, with
    distributed autograd and DistributedOptimizer."""
    rpc: Rpc = Rpc()
    """Remote procedure calls between the workers."""
    optimizer: Annotated[Sgd | Adam | AdamW, Field(discriminator="name")] = Sgd(
        name="sgd", lr=0.05, momentum=0.9, weight_decay=5e-4
    )
    """Optimizer: `sgd`, `adam` or `adamw`."""
    precision: Precision = "float32"
    """Data type of weights and arithmetic. `bfloat16` computes in bfloat16 where it is safe (torch.autocast) and keeps
    float32 weights; a GPU without bfloat16 support is an error. `float64` is for parity tests."""

    @property
    def micro_batch_size(self) -> int:
        return self.batch_size // (self.replicas * self.micro_batches)

    @property
    def least_rpc_threads(self) -> int:
        """In protocol `tutorial`, every micro-batch can block one thread of a stage; two more serve other calls."""
        return self.micro_batches + 2

    @property
    def cut_points(self) -> list[tuple[str, Side]]:
        return [(block, "beginning") for block in self.cuts or ()]

    @model_validator(mode="after")
    def _whole_micro_batches(self) -> Self:
        share, rest = divmod(self.batch_size, self.replicas)
        if rest:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by {self.replicas} replicas; nearest valid: "
                f"{nearest_multiples(self.replicas, self.batch_size)}"
            )
        if share % self.micro_batches:
            valid = [count for count in divisors(share) if count <= MAX_MICRO_BATCHES]
            raise ValueError(
                f"micro_batches {self.micro_batches} does not divide the {share} images of each replica; nearest "
                f"valid: {nearest(valid, self.micro_batches)}"
            )
        one_value = self.micro_batch_size == 1 and self.data.size <= _SHRINKS
        if isinstance(self.model, str) and self.norm == "batch" and one_value:
            raise ValueError(
                f"norm: batch needs more than one value per channel, but a micro-batch of one image of "
                f"{self.data.size} pixels ends with one; use fewer micro_batches, a larger batch_size or norm: group"
            )
        return self

    @model_validator(mode="after")
    def _enough_images(self) -> Self:
        synthetic = self.data.synthetic
        if synthetic is not None and synthetic.images < self.batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is more than the {synthetic.images} images of data.synthetic; set "
                f"batch_size to at most {synthetic.images}, or data.synthetic.images to at least {self.batch_size}"
            )
        return self

    @model_validator(mode="after")
    def _enough_threads(self) -> Self:
        threads, least = self.rpc.threads, self.least_rpc_threads
        if self.protocol == "tutorial" and threads is not None and threads < least:
            raise ValueError(
                f"rpc.threads {threads} would block: in protocol: tutorial each of the {self.micro_batches} "
                f"micro-batches can occupy a thread of a stage, and two more serve other calls; set rpc.threads to at "
                f"least {least}, or omit it"
            )
        return self

    @model_validator(mode="after")
    def _valid_cuts(self) -> Self:
        if self.cuts is None or isinstance(self.model, Builder):
            return self
        try:
            cut_indices(self.cut_points, block_names(self.model))
        except InputError as error:
            raise ValueError(str(error)) from error
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        refuse(self._problems())
        return self

    def _problems(self) -> Iterator[str]:
        if isinstance(self.model, Builder) and self.norm != "batch":
            yield "norm only applies to torchvision's ResNets; omit it with a custom model"
        if self.loss == "mse" and self.label_smoothing:
            yield "label_smoothing only applies to loss: cross-entropy; omit it with loss: mse"
        if self.protocol == "tutorial" and self.lr_schedule != LrSchedule():
            yield "lr_schedule is not supported by protocol: tutorial; omit lr_schedule"
        if self.protocol == "tutorial" and self.replicas > 1:
            yield "replicas must be 1 with protocol: tutorial; use protocol: 1f1b for more"
        if self.early_stopping and not self.data.has_validation:
            yield "early_stopping needs validation images; set data.validation to a share above 0, or to a source"
