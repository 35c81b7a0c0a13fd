"""Sources of labeled images: class folders, IDX files, and generated images. Torch-free.

IDX: http://yann.lecun.com/exdb/mnist: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each
dimension as a big-endian 32-bit number, then the values.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from rolecall.kit.data_access import DataAccess, read_access, start_of
from rolecall.kit.data_order import derive_seed, splitmix64
from rolecall.kit.files import File, find
from rolecall.kit.images.params import Idx, Images, SyntheticImages
from rolecall.spec.errors import InputError
from rolecall.spec.numbers import counted
from rolecall.spec.visible import one_line

_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")
_FORMATS = ("JPEG", "PNG", "PPM", "BMP", "TIFF", "WEBP")  # other formats may start programs, such as Ghostscript
_UNSIGNED_BYTE = 8
_CELLS = 4  # the pattern of a class has 4 × 4 cells
_SIZED_FILES = 10_000
# Purposes of derived seeds: an image's number for its pixels, numbers that no image has for the rest.
_LABELS, _PATTERNS = 2**63, 2**63 + 1


class LabeledImages(Protocol):
    """Images and their labels, indexed by number."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names; a label is an index into them."""
        ...

    @property
    def labels(self) -> NDArray[np.int64]:
        """[n] class indices."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash by which nodes compare their images; empty if the images follow from the parameters."""
        ...

    def image(self, number: int) -> Image.Image:
        """One image, not resized."""
        ...


@dataclass(frozen=True)
class ImageFolder:
    """Image files in a folder for each class."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    paths: list[str]
    access: DataAccess
    fingerprint: str
    """A hash of the classes, the names of all images in them, and the sizes of some files."""

    def image(self, number: int) -> Image.Image:
        """Raises `InputError` if the file is not an image, or jobs may not read it."""
        try:
            with self.access.open(self.paths[number]) as file, Image.open(file, formats=_FORMATS) as image:
                return image.convert("RGB")
        except (OSError, UnidentifiedImageError) as error:
            name = one_line(self.paths[number])
            raise InputError(f"{name} can't be read as an image: {error}; repair or remove it") from error


@dataclass(frozen=True)
class IdxImages:
    """Grayscale images of one size, in memory."""

    classes: tuple[str, ...]
    labels: NDArray[np.int64]
    pixels: NDArray[np.uint8]
    """[n, height, width]"""
    fingerprint: str
    """A hash of all pixels and labels."""

    def image(self, number: int) -> Image.Image:
        """A grayscale image."""
        return Image.fromarray(self.pixels[number])


class GeneratedImages:
    """Square RGB images, each a function of (seed, number): first those of training and validation, then the test."""

    fingerprint = ""

    def __init__(self, chosen: SyntheticImages, size: int) -> None:
        self._size, self._seed = size, chosen.seed
        self.classes = tuple(map(str, range(chosen.classes)))
        numbers = np.arange(chosen.images + chosen.test, dtype=np.uint64)
        self.labels = (splitmix64(numbers, derive_seed(chosen.seed, _LABELS)) % chosen.classes).astype(np.int64)
        self._pattern_seed = derive_seed(chosen.seed, _PATTERNS) if chosen.learnable else None

    def image(self, number: int) -> Image.Image:
        """Uniformly distributed bytes; learnable ones are the mean of noise and the class's pattern."""
        pixels = _random_bytes(derive_seed(self._seed, number), self._size)
        if self._pattern_seed is not None:
            cells = np.arange(self._size) * _CELLS // self._size
            pattern = _random_bytes(derive_seed(self._pattern_seed, int(self.labels[number])), _CELLS)
            pixels = pixels // 2 + pattern[cells][:, cells] // 2
        return Image.fromarray(pixels)


def _random_bytes(seed: int, size: int) -> NDArray[np.uint8]:
    """[size, size, 3] uniformly distributed bytes."""
    count = 3 * size**2
    words = splitmix64(np.arange(-(-count // 8), dtype=np.uint64), seed)
    return words.astype("<u8").view(np.uint8)[:count].reshape(size, size, 3)


def open_source(source: str | Idx, classes: tuple[str, ...] | None = None) -> LabeledImages:
    """Open a source; raises `InputError` if it is missing, invalid, or has classes that are not in `classes`."""
    return _open_idx(source, classes) if isinstance(source, Idx) else _open_folder(source, classes)


def check_source(source: str | Idx) -> None:
    """Check a source as `open_source`, but only headers, or one image name of a folder; raises `InputError`."""
    if isinstance(source, Idx):
        _idx_shapes(source)
        return
    access = read_access()
    folders = _class_folders(source, access)
    if next((path for folder in folders.values() for path in _image_paths(folder, access)), None) is None:
        raise InputError(f"{one_line(source)} has no image in its class folders; valid suffixes: {_join(_SUFFIXES)}")


def _open_folder(source: str, classes: tuple[str, ...] | None) -> ImageFolder:
    access = read_access()
    folders = _class_folders(source, access)
    names = classes or tuple(folders)
    if unknown := sorted(set(folders) - set(names)):
        raise InputError(f"{one_line(source)} has classes that the training images don't have: {_join(unknown)}")
    paths: list[str] = []
    labels: list[int] = []
    digest = hashlib.sha256()
    for name, folder in folders.items():
        found = list(_image_paths(folder, access))
        paths += found
        labels += [names.index(name)] * len(found)
        # Folders, but not the names in them, may lie at another place on another node.
        digest.update(b"".join(os.fsencode(path.removeprefix(folder)) + b"\0" for path in (name, *found)))
    if not paths:
        raise InputError(f"{one_line(source)} has no image in its class folders; valid suffixes: {_join(_SUFFIXES)}")
    # To read all images takes as long as an epoch. Other images under the same names most likely have other sizes; a
    # sample of them bounds the time on a network file system.
    for path in paths[:: -(-len(paths) // _SIZED_FILES)]:
        try:
            digest.update(b"%d," % os.stat(path).st_size)
        except OSError as error:
            raise InputError(f"{one_line(path)} can't be read: {error.strerror}; repair or remove it") from error
    return ImageFolder(names, np.array(labels, np.int64), paths, access, digest.hexdigest())


def _class_folders(source: str, access: DataAccess) -> dict[str, str]:
    """The folder of each class, sorted by name; raises `InputError` if jobs may not read one."""
    shown = one_line(source)
    if (plain := access.plain_path(source)) is None:
        raise InputError(f"{shown} is a URL; class folders must be local, only IDX files can be at URLs")
    access.resolve(plain)
    try:
        names = sorted(entry.name for entry in os.scandir(plain) if entry.is_dir() and entry.name[0] != ".")
    except FileNotFoundError:
        start = start_of(source, ", which resolves relative paths against {}")
        raise InputError(f"{shown} does not exist on this node{start}; every node with a stage needs it") from None
    except OSError as error:
        raise InputError(f"{shown} can't be read as a folder: {error.strerror}") from error
    if len(names) < 2:
        raise InputError(
            f"{shown} has {counted(len(names), 'folder')}; it needs one per class, and at least two classes"
        )
    return {name: access.resolve(os.path.join(plain, name)) for name in names}


def _image_paths(folder: str, access: DataAccess) -> Iterator[str]:
    """Image paths below `folder`, sorted by name; raises `InputError` for a link that jobs may not follow."""
    try:
        with os.scandir(folder) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{one_line(folder)} can't be read as a folder: {error.strerror}") from error
    for entry in ordered:
        if not entry.is_dir() and entry.name.lower().endswith(_SUFFIXES):
            if entry.is_symlink():
                access.resolve(entry.path)
            yield entry.path
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            yield from _image_paths(entry.path, access)


def _open_idx(source: Idx, classes: tuple[str, ...] | None) -> IdxImages:
    shapes = _idx_shapes(source)
    pixels, labels = (_read_values(file, shape) for file, shape in shapes)
    count = int(labels.max()) + 1
    names = classes or tuple(map(str, range(count)))
    if count > len(names):
        shown = one_line(source.labels)
        raise InputError(f"{shown} has a label {count - 1}, but there are {len(names)} classes: {_join(names)}")
    digest = hashlib.sha256(labels.data)
    digest.update(pixels.data)  # They are in memory: about 0.6 s per GB.
    return IdxImages(names, labels.astype(np.int64), pixels, digest.hexdigest())


def _idx_shapes(source: Idx) -> list[tuple[File, tuple[int, ...]]]:
    """The image and label files with their dimensions, which must match."""
    (images,), (labels,) = find([source.images]), find([source.labels])
    shapes = [(images, _shape(images, 3)), (labels, _shape(labels, 1))]
    counts = [shape[0] for _, shape in shapes]
    if counts[0] != counts[1]:
        given = [one_line(name) for name in (source.images, source.labels)]
        raise InputError(f"{given[0]} has {counts[0]} images, {given[1]} {counts[1]} labels; they must match")
    if not counts[0]:
        raise InputError(f"{one_line(source.images)} has no images")
    return shapes


def _shape(file: File, dimensions: int) -> tuple[int, ...]:
    with file.open() as opened:
        return _header(opened, file.name, dimensions)


def _header(opened: BinaryIO, name: str, dimensions: int) -> tuple[int, ...]:
    magic = opened.read(4)
    if magic != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        raise InputError(
            f"{name} is not an IDX file of unsigned bytes in {counted(dimensions, 'dimension')}: it begins with "
            f"{magic.hex(' ')}, not 00 00 08 {dimensions:02x}"
        )
    sizes = opened.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise InputError(f"{name} is truncated within its header")
    return tuple(int(size) for size in np.frombuffer(sizes, ">u4"))


def _read_values(file: File, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    with file.open() as opened:
        _header(opened, file.name, len(shape))
        values = np.frombuffer(opened.read(), np.uint8)
    if len(values) != int(np.prod(shape)):
        raise InputError(f"{file.name} has {len(values)} values, its header says {int(np.prod(shape))}")
    return values.reshape(shape)


def _join(names: tuple[str, ...] | list[str]) -> str:
    return one_line(", ".join(names[:20])) + (" …" if len(names) > 20 else "")


def check_images(images: Images) -> None:
    """Raises `InputError` unless every source exists and looks like labeled images; generated ones always do."""
    for source in images.sources.values():
        check_source(source)
