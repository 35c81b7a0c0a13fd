"""What a user may say about a job's images. Torch-free; docstrings are the API's descriptions."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit.params import DataPath, Fraction, Name, Positive
from rolecall.spec import workload

Mean = Annotated[float, Field(ge=-1e12, le=1e12)]
Channels = tuple[Mean, Mean, Mean]


class Idx(workload.Params):
    """A pair of files in the format of MNIST (http://yann.lecun.com/exdb/mnist), packed by gzip (`.gz`) or not."""

    images: DataPath
    """The images: unsigned bytes in three dimensions; a path or fsspec URL."""
    labels: DataPath
    """Their labels: unsigned bytes in one dimension; a path or fsspec URL."""


Source = DataPath | Idx


class Images(workload.Params):
    """A job's images. All are made RGB, square and of one size."""

    train: Source
    """The training images: a local folder that has a folder per class (as torchvision's ImageFolder), or IDX files."""
    test: Source | None = None
    """Images for the final score, as `train`; of the same classes."""
    validation: Annotated[Fraction | Source, Field(union_mode="left_to_right")] = 0.1
    """The images for the score of each epoch: a share of the training images, drawn by a seeded hash of the image's
    number, or a source as `train`."""
    classes: Annotated[tuple[Name, ...], Field(max_length=50_000, fail_fast=True)] | None = None
    """The classes' names in the order of the labels, for IDX files; by default the numbers."""
    size: Annotated[int, Field(ge=16, le=1024)] = 224
    """Height and width of what the model sees, in pixels."""
    augment: Annotated[tuple[Literal["zoom", "shift", "flip"], ...], Field(max_length=3)] = ()
    """How training images are varied: `zoom` crops a random part and resizes it (Szegedy et al., 2015), `shift` moves
    by up to an eighth of the size, `flip` mirrors every other image. Not by default: digits don't bear mirrors."""
    mean: Channels = (0.485, 0.456, 0.406)
    """Subtracted from red, green and blue, which are 0 to 1; by default ImageNet's."""
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    """What they are then divided by."""
    loader_processes: Annotated[int, Field(ge=0, le=64)] = 1
    """Processes beside each first stage that decode and augment; with 0 it does so itself. They don't change what is
    drawn."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.classes is not None and not isinstance(self.train, Idx):
            raise ValueError("classes goes with IDX files; a folder per class has its names already")
        doubles = sorted({name for name in self.augment if self.augment.count(name) > 1})
        if doubles:
            raise ValueError(f"augment lists {', '.join(doubles)} more than once; list each once")
        if {"zoom", "shift"} <= set(self.augment):
            raise ValueError("augment has both zoom and shift; a zoom moves the image already, list one of them")
        return self

    @property
    def has_validation(self) -> bool:
        """Whether any image is held out for the score of each epoch."""
        return self.validation != 0.0

    @property
    def sources(self) -> dict[str, str | Idx]:
        """Each split that has a source of its own."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: source for split, source in given.items() if isinstance(source, str | Idx)}
