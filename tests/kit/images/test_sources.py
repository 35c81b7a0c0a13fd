# pyright: standard
"""Images in folders and IDX files, and the errors of invalid ones."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from tests.pictures import CLASSES, pictures, write_folder, write_idx

from rolecall.kit.images import sources
from rolecall.kit.images.params import Idx, Images, SyntheticImages
from rolecall.kit.images.sources import GeneratedImages, ImageFolder, check_images, check_source, open_source
from rolecall.spec.errors import InputError


def test_a_folder_per_class(tmp_path: Path) -> None:
    source = open_source(str(write_folder(tmp_path, 9, 24)))
    assert source.classes == CLASSES
    assert source.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert source.image(0).mode == "RGB"
    assert source.image(8).size == (22, 24)


def test_images_are_found_below_a_class_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("cat/b/1.png", "cat/a/2.JPG", "dog/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), 9).save(tmp_path / name)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    source = open_source(str(tmp_path))
    assert isinstance(source, ImageFolder)
    assert source.labels.tolist() == [0, 0, 1]
    assert Path(source.paths[0]).name == "2.JPG"


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path: Path, packed: bool) -> None:
    expected, labels = pictures(7, 28)
    source = open_source(Idx(**write_idx(tmp_path, 7, 28, packed=packed)))
    assert source.classes == ("0", "1", "2")
    np.testing.assert_array_equal(source.labels, labels)
    np.testing.assert_array_equal(np.asarray(source.image(4)), expected[4])


def test_idx_classes_may_have_names_and_more_than_were_seen(tmp_path: Path) -> None:
    idx = Idx(**write_idx(tmp_path, 7, 28))
    assert open_source(idx, ("a", "b", "c", "d")).classes == ("a", "b", "c", "d")
    with pytest.raises(InputError, match="has a label 2, but there are 2 classes: a, b"):
        open_source(idx, ("a", "b"))


def test_held_out_folders_may_not_have_other_classes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, 9, 24)
    assert open_source(str(folder), ("another", *CLASSES)).labels.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    with pytest.raises(InputError, match="classes that the training images don't have: rows"):
        open_source(str(folder), CLASSES[:2])


def swap(first: Path, second: Path) -> None:
    aside = first.rename(first.with_suffix(".aside"))
    second.rename(first)
    aside.rename(second)


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: swap(folder / "checks", folder / "rows"),
        lambda folder: (folder / "rows" / "00002.png").rename(folder / "rows" / "00003.png"),
        lambda folder: Image.new("L", (16, 16)).save(folder / "rows" / "00002.png"),
    ],
    ids=["labels", "names", "sizes"],
)
def test_folders_with_other_images_have_other_fingerprints(tmp_path: Path, edit: Callable[[Path], None]) -> None:
    first, same, other = (write_folder(tmp_path / node, 9, 24) for node in ("a", "b", "c"))
    (same / "checks").rename(tmp_path / "moved")
    (same / "checks").symlink_to(tmp_path / "moved")  # Nodes may keep their files at other places.
    edit(other)
    fingerprints = [open_source(str(folder)).fingerprint for folder in (first, same, other)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_the_sizes_of_few_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SIZED_FILES", 2)
    folder = write_folder(tmp_path, 9, 24)
    before = open_source(str(folder)).fingerprint
    Image.new("L", (16, 16)).save(folder / "columns" / "00001.png")  # number 3 of 0 to 8, of which 0 and 5 are read
    assert open_source(str(folder)).fingerprint == before
    Image.new("L", (16, 16)).save(folder / "columns" / "00007.png")
    assert open_source(str(folder)).fingerprint != before


@pytest.mark.parametrize("edited", ["images", "labels"])
def test_idx_files_with_another_byte_have_another_fingerprint(tmp_path: Path, edited: str) -> None:
    first, same, other = (write_idx(tmp_path / node, 7, 28, packed=node == "b") for node in ("a", "b", "c"))
    path = Path(other[edited])
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    fingerprints = [open_source(Idx(**files)).fingerprint for files in (first, same, other)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def empty_classes(folder: Path) -> str:
    for name in ("a", "b"):
        (folder / name).mkdir()
    return str(folder)


def with_one_class(folder: Path) -> str:
    (folder / "a").mkdir()
    return str(folder)


def a_file(folder: Path) -> str:
    (folder / "file").write_text("")
    return str(folder / "file")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda folder: str(folder / "nowhere"), "nowhere does not exist on this node"),
        (a_file, "can't be read as a folder"),
        (with_one_class, "needs one per class, and at least two classes"),
        (empty_classes, "has no image in its class folders; valid suffixes: .jpg"),
    ],
)
def test_a_wrong_folder_is_named(tmp_path: Path, make: Callable[[Path], str], expected: str) -> None:
    source = make(tmp_path)
    for look in (check_source, open_source):
        with pytest.raises(InputError, match=expected):
            look(source)


def changed(idx: Idx, name: str, change: Callable[[bytes], bytes]) -> Idx:
    path = Path(getattr(idx, name))
    path.write_bytes(change(path.read_bytes()))
    return idx


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("images", lambda content: b"\x89PNG" + content, "begins with 89 50 4e 47, not 00 00 08 03"),
        ("labels", lambda content: content[:6], "is truncated within its header"),
        (
            "labels",
            lambda content: content[:4] + b"\0\0\0\x06" + content[8:-1],
            "7 images, .*6 labels; they must match",
        ),
    ],
)
def test_wrong_idx_headers_are_found_by_the_check(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], expected: str
) -> None:
    idx = changed(Idx(**write_idx(tmp_path, 7, 28)), name, change)
    with pytest.raises(InputError, match=expected):
        check_source(idx)


def test_a_cut_idx_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    idx = changed(Idx(**write_idx(tmp_path, 7, 28)), "images", lambda content: content[:-1])
    check_source(idx)
    with pytest.raises(InputError, match="has 5487 values, its header says 5488"):
        open_source(idx)


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    source = open_source(str(write_folder(tmp_path, 3, 24)))
    assert isinstance(source, ImageFolder)
    Path(source.paths[1]).write_bytes(b"no image")
    with pytest.raises(InputError, match=f"{source.paths[1]} can't be read as an image"):
        source.image(1)


def generated(**changes: int) -> GeneratedImages:
    return GeneratedImages(SyntheticImages.model_validate({"images": 300, "classes": 4} | changes), size=20)


def pixels(source: GeneratedImages) -> NDArray[np.float64]:
    """[n, 1200]"""
    return np.stack([np.asarray(source.image(number), np.float64).ravel() for number in range(len(source.labels))])


def test_generated_images_are_a_function_of_their_seed() -> None:
    source, same, other = generated(), generated(test=5), generated(seed=1)
    assert source.classes == ("0", "1", "2", "3")
    assert (len(source.labels), len(same.labels)) == (300, 305)
    np.testing.assert_array_equal(same.labels[:300], source.labels)
    np.testing.assert_array_equal(pixels(same)[:300], pixels(source))
    assert not np.array_equal(other.labels, source.labels)
    assert not np.array_equal(pixels(other), pixels(source))
    check_images(Images.model_validate({"synthetic": {"images": 300, "classes": 4}}))


def test_generated_images_are_uniform_noise() -> None:
    """In every channel; all classes are about as frequent."""
    source = generated()
    values = np.stack([np.asarray(source.image(number)) for number in range(300)])
    assert values.shape == (300, 20, 20, 3)
    shares = np.bincount(values[..., 2].ravel() // 16, minlength=16) / values[..., 2].size
    np.testing.assert_allclose(shares, 1 / 16, atol=0.005)
    np.testing.assert_allclose(np.bincount(source.labels) / 300, 1 / 4, atol=0.1)


@pytest.mark.parametrize(("learnable", "least", "most"), [(True, 0.99, 1.0), (False, 0.0, 0.5)])
def test_only_learnable_labels_can_be_learned(learnable: bool, least: float, most: float) -> None:
    """By the nearest of the classes' mean images."""
    source = generated(learnable=learnable)
    values = pixels(source)
    means = np.stack([values[:200][source.labels[:200] == label].mean(0) for label in range(4)])
    distances = np.linalg.norm(values[200:, None] - means, axis=2)
    assert least <= (distances.argmin(1) == source.labels[200:]).mean() <= most
