# pyright: standard
"""Small labeled images to train on: each class has a pattern of its own under noise."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

CLASSES = ("checks", "columns", "rows")


def pictures(count: int, size: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[count, size, size] grey images and their labels [count], the classes in turn."""
    random = np.random.default_rng(seed)
    labels = (np.arange(count) % len(CLASSES)).astype(np.uint8)
    down, across = np.meshgrid(np.arange(size) // 4 % 2, np.arange(size) // 4 % 2, indexing="ij")
    patterns = np.stack([down ^ across, across, down])
    noise = random.integers(0, 128, (count, size, size))
    return (patterns[labels] * 127 + noise).astype(np.uint8), labels


def write_folder(folder: Path, count: int, size: int, seed: int = 0) -> Path:
    """A folder per class; colors, and no two classes of one width."""
    images, labels = pictures(count, size, seed)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[:, : size - int(label)]).convert("RGB").save(place / f"{number:05d}.png")
    return folder


def write_idx(folder: Path, count: int, size: int, seed: int = 0, *, packed: bool = False) -> dict[str, str]:
    """A pair of files in MNIST's format, as `data.train` names them."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = pictures(count, size, seed)
    return {
        name: str(_write(folder / name, array, packed=packed))
        for name, array in (("images", images), ("labels", labels))
    }


def _write(path: Path, array: NDArray[np.uint8], *, packed: bool) -> Path:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    if not packed:
        path.write_bytes(header + array.tobytes())
        return path
    target = path.with_name(path.name + ".gz")
    target.write_bytes(gzip.compress(header + array.tobytes()))
    return target
