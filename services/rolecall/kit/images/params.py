"""Parameters of a job's images. Torch-free; docstrings are the API's descriptions."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rolecall.kit.params import DataPath, Fraction, Name, Positive
from rolecall.spec import workload
from rolecall.spec.workload import refuse

Mean = Annotated[float, Field(ge=-1e12, le=1e12)]
Channels = tuple[Mean, Mean, Mean]


class Idx(workload.Params):
    """A pair of files in MNIST's format (http://yann.lecun.com/exdb/mnist), optionally gzipped (`.gz`)."""

    images: DataPath
    """Path or fsspec URL of the images: unsigned bytes in three dimensions."""
    labels: DataPath
    """Path or fsspec URL of the labels: unsigned bytes in one dimension."""


Source = DataPath | Idx


class SyntheticImages(workload.Params):
    """Random images, generated while they are loaded and never stored, for smoke tests, lessons and benchmarks."""

    images: Annotated[int, Field(ge=1, le=10_000_000)]
    """Number of training images, including the share that `data.validation` takes from them."""
    classes: Annotated[int, Field(ge=2, le=50_000)]
    """Number of classes; their names are the label numbers."""
    test: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """Number of test images; 0 for none."""
    learnable: bool = False
    """If true, each class has a random pattern of its own under the noise, so that a model can learn the labels.
    Otherwise pixels and labels are independent."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of pixels and labels; independent of the seed of the job."""


class Images(workload.Params):
    """A job's images: files or synthetic. All are converted to RGB squares of one size."""

    train: Source | None = None
    """Training images: a local folder with one folder per class (torchvision's ImageFolder layout), or IDX files."""
    synthetic: SyntheticImages | None = None
    """Generated images, used instead of `train`."""
    test: Source | None = None
    """Test images for the final score, in the same form as `train` and with the same classes."""
    validation: Annotated[Fraction | Source, Field(union_mode="left_to_right")] = 0.1
    """Validation images, scored after each epoch: a share of the training images, selected by a seeded hash of the
    image's index, or a source in the same form as `train`."""
    classes: Annotated[tuple[Name, ...], Field(max_length=50_000, fail_fast=True)] | None = None
    """Names of the classes in the order of the labels, for IDX files; by default the label numbers."""
    size: Annotated[int, Field(ge=16, le=1024)] = 224
    """Height and width of the model's input, in pixels."""
    augment: Annotated[tuple[Literal["zoom", "shift", "flip"], ...], Field(max_length=3)] = ()
    """Augmentations of the training images: `zoom` crops a random part and resizes it (Szegedy et al., 2015), `shift`
    translates by up to an eighth of the size, `flip` mirrors an image with probability 0.5. The default is none: for
    example, mirrored digits are not valid."""
    mean: Channels = (0.485, 0.456, 0.406)
    """Values subtracted from the red, green and blue channels, which are in 0 to 1; by default ImageNet's."""
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    """Values by which the channels are then divided; by default ImageNet's."""
    loader_processes: Annotated[int, Field(ge=0, le=64)] = 1
    """Number of processes that decode and augment images, for each worker that reads them; with 0, the worker does it
    itself. This doesn't change the random values."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        origins = "train (a class folder or IDX files) or synthetic (generated images)"
        if self.train is None and self.synthetic is None:
            raise ValueError(f"train is missing; set either {origins}")
        if self.train is not None and self.synthetic is not None:
            raise ValueError(f"train and synthetic are both given; set either {origins}")
        refuse(self._problems())
        return self

    def _problems(self) -> Iterator[str]:
        if self.synthetic is not None:
            if self.test is not None:
                yield "test names files, which synthetic images can't be mixed with; set synthetic.test"
            if not isinstance(self.validation, float):
                yield "validation of synthetic images must be a share of them, from 0 to below 1"
            if self.classes is not None:
                yield "classes requires IDX files; set synthetic.classes to the number of classes"
        elif self.classes is not None and not isinstance(self.train, Idx):
            yield "classes requires IDX files; class folders give the classes their names"
        duplicates = sorted({name for name in self.augment if self.augment.count(name) > 1})
        if duplicates:
            yield f"augment lists {', '.join(duplicates)} more than once; list each once"
        elif {"zoom", "shift"} <= set(self.augment):
            yield "augment has both zoom and shift; zoom already moves the image, so list only one of them"

    @property
    def has_validation(self) -> bool:
        return self.validation != 0.0

    @property
    def sources(self) -> dict[str, str | Idx]:
        """The sources of the splits that have their own."""
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {split: source for split, source in given.items() if isinstance(source, str | Idx)}
