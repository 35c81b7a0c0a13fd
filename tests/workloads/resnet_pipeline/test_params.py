# pyright: standard
"""Parameters of a job and the errors of invalid ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torchvision.models import get_model

from rolecall.kit.images.params import SyntheticImages
from rolecall.kit.params import Sgd
from rolecall.spec.role import Role
from rolecall.workloads.resnet_pipeline.check import check_counts, rpc_threads
from rolecall.workloads.resnet_pipeline.params import Params, block_names

EXAMPLES = Path(__file__).parents[3] / "examples"
MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def params(**changes: Any) -> Params:
    return Params.model_validate({"data": {"train": "pictures"}, **changes})


def example(name: str) -> Params:
    """The parameters of an example, with which its role counts are consistent."""
    body = json.loads((EXAMPLES / name).read_text())
    given = Params.model_validate(body["params"])
    check_counts(given, {Role(role): count for role, count in body["roles"].items()})
    return given


def test_the_example_is_legal() -> None:
    assert example("resnet-pipeline.json").protocol == "1f1b"


def test_the_tutorials_example_has_its_numbers() -> None:
    """Except for the size of the images, 128."""
    given = example("tutorials/rpc-pipeline.json")
    assert given.data.synthetic == SyntheticImages(images=3 * 120, classes=1000)
    assert (given.protocol, given.loss, given.batch_size, given.rpc.threads) == ("tutorial", "mse", 120, 128)
    assert (given.optimizer, given.cuts) == (Sgd(name="sgd", lr=0.05), ("layer3.0",))


@given(
    counts=st.tuples(st.integers(1, 4), st.integers(1, 16), st.integers(2, 64)),
    norm=st.sampled_from(["batch", "group"]),
    source=st.sampled_from(["folder", {"images": "i.gz", "labels": "l.gz"}]),
    validation=st.floats(0, 1, exclude_max=True) | st.sampled_from(["held", {"images": "i", "labels": "l"}]),
)
def test_workers_read_what_the_master_stored(
    counts: tuple[int, int, int], norm: str, source: Any, validation: Any
) -> None:
    replicas, micro_batches, micro_batch_size = counts
    given = params(
        data={"train": source, "validation": validation, "size": 32},
        replicas=replicas,
        micro_batches=micro_batches,
        batch_size=replicas * micro_batches * micro_batch_size,
        norm=norm,
    )
    assert given.micro_batch_size == micro_batch_size
    assert Params.model_validate(given.model_dump(mode="json")) == given


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_blocks_have_torchvisions_names(model: str) -> None:
    theirs = [
        f"{layer}.{block}"
        for layer, blocks in get_model(model).named_children()
        if layer.startswith("layer")
        for block, _ in blocks.named_children()
    ]
    assert block_names(model) == ("stem", *theirs, "head")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"batch_size": 128, "micro_batches": 3},
            "micro_batches 3 does not divide the 128 images of each replica; nearest valid: 2 or 4",
        ),
        ({"batch_size": 128, "replicas": 3}, "is not divisible by 3 replicas; nearest valid: 126 or 129"),
        ({"batch_size": 2, "replicas": 3}, "is not divisible by 3 replicas; nearest valid: 3"),
        (
            {"batch_size": 4, "data": {"train": "p", "size": 32}},
            "use fewer micro_batches, a larger batch_size or norm: group",
        ),
        ({"cuts": ["layer5.0"]}, "the model has no block layer5.0 to cut before; valid: layer1.0, layer1.1, layer2.0"),
        ({"cuts": ["stem"]}, "no block stem"),
        ({"cuts": ["layer3.0", "layer2.0"]}, "cuts must be in the model's order"),
        ({"protocol": "tutorial", "lr_schedule": {"shape": "cosine"}}, "omit lr_schedule"),
        ({"protocol": "tutorial", "replicas": 2}, "use protocol: 1f1b"),
        ({"loss": "mse", "label_smoothing": 0.1}, "omit it with loss: mse"),
        (
            {"protocol": "tutorial", "micro_batches": 32, "rpc": {"threads": 33}},
            "each of the 32 micro-batches can occupy a thread of a stage, and two more serve other calls; set "
            "rpc.threads to at least 34, or omit it",
        ),
        ({"rpc": {"threads": 15}}, "greater than or equal to 16"),
        ({"rpc": {"timeout_s": 1}}, "greater than or equal to 5"),
        (
            {"batch_size": 64, "data": {"synthetic": {"images": 63, "classes": 3}}},
            "set batch_size to at most 63, or data.synthetic.images to at least 64",
        ),
        ({"early_stopping": {}, "data": {"train": "p", "validation": 0.0}}, "early_stopping needs validation images"),
        ({"data": {"train": "p", "classes": ["a", "b"]}}, "classes requires IDX files"),
        ({"data": {"train": "p", "augment": ["zoom", "shift"]}}, "list only one of them"),
        ({"data": {"train": "p", "augment": ["flip", "flip"]}}, "list each once"),
        ({"data": {"train": {"images": "i"}}}, "labels"),
        ({"data": {"train": "p", "std": [1, 0, 1]}}, "greater than 0"),
        ({"modle": "resnet50"}, "modle"),
        ({"model": {"builder": "theirs:small"}, "norm": "group"}, "omit it"),
        ({"model": "resnet19"}, "resnet19"),
    ],
)
def test_illegal_parameters_are_explained(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError) as error:
        params(**changes)
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("changes", "stages", "expected"),
    [
        ({}, 1, "1 stage for 1 replica"),
        ({}, 11, "valid: 1 times 2 to 10"),
        ({"replicas": 2}, 3, "3 stages for 2 replicas"),
        ({"replicas": 2}, 2, "2 stages for 2 replicas"),
        ({"cuts": ["layer2.0"]}, 3, "cuts has 1 block for 3 stages per replica; it needs 2"),
    ],
)
def test_stages_that_dont_fit_are_refused(changes: dict[str, Any], stages: int, expected: str) -> None:
    with pytest.raises(ValueError, match=expected.replace("(", r"\(").replace(")", r"\)")):
        check_counts(params(**changes), {Role.MASTER: 1, Role.STAGE: stages})


@pytest.mark.parametrize(
    ("changes", "stages"),
    [
        ({}, 2),
        ({}, 10),
        ({"replicas": 2}, 4),
        ({"cuts": ["layer2.0", "head"]}, 3),
        ({"model": {"builder": "theirs:small"}, "cuts": ["whatever"]}, 2),
    ],
)
def test_stages_that_fit(changes: dict[str, Any], stages: int) -> None:
    check_counts(params(**changes), {Role.MASTER: 1, Role.STAGE: stages})


def test_every_micro_batch_has_a_thread_and_two_are_left() -> None:
    assert rpc_threads(params(micro_batches=64), {Role.STAGE: 2}) == 66
    threads = {"protocol": "tutorial", "micro_batches": 64, "rpc": {"threads": 66}}
    assert rpc_threads(params(**threads), {Role.STAGE: 2}) == 66


def test_in_1f1b_no_micro_batch_blocks_a_thread() -> None:
    assert rpc_threads(params(micro_batches=64, rpc={"threads": 16}), {Role.STAGE: 2}) == 16
